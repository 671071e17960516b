// Windows of several hosts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_join.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/link.h"
#include "tessera/errors.h"
#include "tessera/window.h"

namespace tessera::internal::hosts {
namespace {

/// The memory of a window over several hosts. Reads the parts of this host's ranks in shared
/// memory, and other parts over the network. If a read over the network has a version, one rank of
/// the host does it for all of them: Note [One copy for a host].
class Memory final : public RemoteMemory {
 public:
  /// `number` identifies the window among those that share `cache`.
  Memory(const HostSubgroups& subgroups, std::string group, std::shared_ptr<RemoteMemory> inside,
         std::shared_ptr<RemoteMemory> flat, std::shared_ptr<ReadCache> cache, int64_t number)
      : layout_(subgroups.layout),
        rank_(subgroups.rank()),
        group_(std::move(group)),
        inside_(std::move(inside)),
        flat_(std::move(flat)),
        cache_(std::move(cache)),
        number_(number) {}

  std::string failure() const override {
    std::string cause = flat_->failure();
    return cause.empty() ? inside_->failure() : cause;
  }

  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view tag, int64_t version) override {
    if (is_here(rank)) {
      return inside_->read(layout_.local_of(rank), begin_bytes, to, tag, version);
    }
    if (version == Window::kUnversioned) {
      return flat_->read(rank, begin_bytes, to, tag, version);
    }
    const ReadKey key{.window = number_,
                      .rank = rank,
                      .begin = begin_bytes,
                      .bytes = static_cast<int64_t>(to.nbytes()),
                      .version = version};
    const auto fetch = [flat = flat_, rank, begin_bytes, tag = std::string(tag),
                        version](const at::Tensor& memory) {
      return flat->read(rank, begin_bytes, memory, tag, version);
    };
    const auto check = [flat = flat_, inside = inside_, group = group_, rank = rank_,
                        tag = std::string(tag)] {
      for (const auto& memory : {flat, inside}) {
        const std::string cause = memory->failure();
        if (!cause.empty()) throw CommError({"read", group, -1, rank, tag}, cause);
      }
    };
    return cache_->start_read(key, to, fetch, check);
  }

  int64_t load(int rank, int64_t begin_bytes) override {
    return is_here(rank) ? inside_->load(layout_.local_of(rank), begin_bytes)
                         : flat_->load(rank, begin_bytes);
  }

 private:
  bool is_here(int rank) const { return layout_.host_of(rank) == layout_.host_of(rank_); }

  const HostLayout layout_;
  const int rank_;
  const std::string group_;
  const std::shared_ptr<RemoteMemory> inside_;
  const std::shared_ptr<RemoteMemory> flat_;
  const std::shared_ptr<ReadCache> cache_;
  const int64_t number_;
};

}  // namespace

/// Makes the window. If the ranks of one host refuse to make it, all ranks of the group refuse.
CollectiveTask make_window(const HostSubgroups& subgroups, const GroupSetting& setting,
                           Call& call) {
  const at::Tensor own = call.collective().input;
  const Collective made{.op = Op::kMakeWindow, .output = own, .input = own, .tag = call.tag()};
  const std::shared_ptr<Call> inside = subgroups.inside->start(made);
  co_await inside;
  constexpr int64_t kText = 480;
  const at::Tensor texts = subgroups.scratch(kText * subgroups.hosts(), at::kByte).zero_();
  const at::Tensor text = part_of(texts, kText * subgroups.host(), kText);
  inside->made().problem.copy(data_of(text), kText - 1);
  co_await start_all_gather(*subgroups.across, texts, text, "make_window");
  std::vector<std::string> problems;
  for (int host = 0; host < subgroups.hosts(); ++host) {
    std::string problem = data_of(texts) + kText * host;
    const bool is_known = std::count(problems.begin(), problems.end(), problem) > 0;
    if (!problem.empty() && !is_known) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) {
    call.made().problem = absl::StrJoin(problems, "\n");
    co_return;
  }
  const std::shared_ptr<Call> flat = subgroups.flat->start(made);
  co_yield CollectiveTask::Given();
  co_await flat;
  // FSDP has a window for each unit, and `own` is a shard of the unit. The cache gets room for four
  // units: one that some ranks still read, one that the other ranks read, one that is arriving, and
  // one that has been requested. In the cache a unit takes as many bytes as `own` for each rank of
  // the other hosts.
  constexpr int64_t kUnits = 4;
  const int64_t others = subgroups.layout.ranks() - subgroups.locals();
  setting.cache->reserve(kUnits * others * static_cast<int64_t>(own.nbytes()));
  call.made().memory = std::make_shared<Memory>(
      subgroups, call.group(), inside->made().memory, flat->made().memory, setting.cache,
      static_cast<int64_t>(setting.id_of_made(call.sequence()) >> 1));
}

}  // namespace tessera::internal::hosts
