#include "tessera/core/comm/hosts/host_subgroups.h"

#include <utility>

#include <ATen/ops/from_blob.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/time_out.h"

namespace tessera::internal::hosts {

HostSubgroups::HostSubgroups(Links links, HostLayout host_layout, const std::string& group,
                             Member::Patience patience)
    : layout(host_layout) {
  const Member::Patience endless{kMaxTimeOut, std::chrono::milliseconds(0)};
  const auto make = [&](std::unique_ptr<internal::Link> link, const char* part,
                        Member::Patience of_part) {
    // Threads that wait for the group rest on the link of `inside`, which is made first. So each of
    // the other members wakes that link when one of its calls is over.
    const std::weak_ptr<Member> waits = inside;
    auto member = std::make_shared<Member>(std::move(link), group + part, Lane::Mode::kInline,
                                           of_part, [waits] {
                                             if (const auto member = waits.lock())
                                               member->link().wake();
                                           });
    member->link().attach(member);
    return member;
  };
  inside = make(std::move(links.inside), " (inside)", endless);
  last = make(std::move(links.last), " (inside, last)", endless);
  calls = make(std::move(links.calls), " (calls)", endless);
  across = make(std::move(links.across), " (across)", endless);
  flat = make(std::move(links.flat), "", patience);
}

void HostSubgroups::fail(const std::string& cause) {
  const Failure failure{.cause = cause, .calls = kEveryCall};
  for (const auto& member : {calls, across, inside, last}) {
    if (!member->link().has_failed()) member->link().fail(failure);
    member->link().wake();
  }
}

HostSubgroups::~HostSubgroups() {
  for (const auto& member : {flat, calls, across, inside, last}) member->close();
}

void HostSubgroups::leave() {
  for (const auto& member : {inside, last}) member->link().leave();
}

std::vector<AwaitedRank> HostSubgroups::awaited() const {
  std::vector<AwaitedRank> ranks = flat->awaited_ranks();
  for (const auto& member : {inside, last}) {
    for (const auto& [place, has_gone] : member->awaited_ranks()) {
      ranks.push_back({layout.rank_of(host(), place), has_gone});
    }
  }
  for (const auto& [other, has_gone] : across->awaited_ranks()) {
    ranks.push_back({layout.rank_of(other, local()), has_gone});
  }
  return ranks;
}

std::shared_ptr<Call> start_all_gather(Member& member, const at::Tensor& all, const at::Tensor& own,
                                       std::string_view tag) {
  return member.start({.op = Op::kAllGather, .output = all, .input = own, .tag = tag});
}

at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  return at::from_blob(
      data_of(tensor) + begin * element, {numel}, [tensor](void*) {},
      at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace tessera::internal::hosts
