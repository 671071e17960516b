#include "tessera/core/comm/hosts/group.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/text_exchange.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/hosts/coupled_work.h"
#include "tessera/core/comm/hosts/outer_group.h"
#include "tessera/core/comm/hosts/part_group.h"
#include "tessera/core/comm/hosts/transfers.h"
#include "tessera/core/comm/hosts/window.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {

Group::Group(std::shared_ptr<World> world, Levels levels)
    : world_(std::move(world)), member_(std::make_unique<Member>(*world_, std::move(levels))) {}

Group::~Group() {
  if (unwinding_.is_by_own_error()) world_->fail_by_unwinding();
  world_->retire(std::move(member_));
}

Capabilities Group::can() const {
  const Levels& levels = member_->levels();
  return {.in_background = true,
          .one_sided_reads = levels.flat->can().one_sided_reads,
          .crosses_network = true,
          .tree_sums = levels.layout.sums_are_one_tree()};
}

/// Messages fail where the world has, and with them the world.
template <typename Body>
auto Group::with_messages(const Collective& message, Body&& body) {
  const bool is_here = world_->origin().is_here();
  const std::string cause = is_here ? world_->failure() : "";
  if (!cause.empty()) {
    throw CommError({to_string(message.op), member_->name(), -1, rank(), std::string(message.tag)},
                    cause);
  }
  return coupled(world_, std::forward<Body>(body));
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  if (traits_of(collective.op).tensors == OpTraits::Tensors::kMessage) {
    return with_messages(collective,
                         [&] { return couple(member_->levels().flat->run(collective)); });
  }
  const Transfer transfer = transfer_of(collective.op);
  if (transfer == nullptr) refuse(collective);
  if (collective.order == SumOrder::kBinaryTree && !can().tree_sums) {
    refuse(collective, "in a tree's order");
  }
  auto work = member_->start(collective, [&levels = member_->levels(), transfer](
                                             const Collective& call, const auto& slices) {
    return transfer(levels, call, slices);
  });
  if (collective.op == Op::kBarrier) work->wait();
  return work;
}

std::vector<std::shared_ptr<Work>> Group::run_batch(const std::vector<Collective>& messages) {
  if (messages.empty()) return {};
  return with_messages(messages.front(), [&] {
    auto works = member_->levels().flat->run_batch(messages);
    for (auto& work : works) work = couple(std::move(work));
    return works;
  });
}

std::shared_ptr<Work> Group::couple(std::shared_ptr<Work> work) const {
  return std::make_shared<CoupledWork>(std::move(work), world_);
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  return member_->levels().inside->allocate(numel, dtype);
}

/// Runs `body` between the collectives of the group, when all ranks have called. Blocks.
template <typename Body>
void Group::run_in_lane(const Collective& call, Body&& body, int64_t numel) {
  member_
      ->start(
          call,
          [&body](const Collective&, const std::vector<int>&) {
            body();
            return Member::Last();
          },
          numel)
      ->wait();
}

std::unique_ptr<tessera::Window> Group::make_window(const at::Tensor& own, std::string_view name) {
  if (!can().one_sided_reads) return ProcessGroup::make_window(own, name);
  check_window(own, name);
  std::unique_ptr<tessera::Window> window;
  std::string problem;
  run_in_lane({.op = Op::kMakeWindow, .input = own, .tag = name}, [&] {
    try {
      window = make_windows(own, std::string(name));
    } catch (const ErrorOnAllRanks& error) {
      problem = error_text(error);
    }
  });
  if (!problem.empty()) throw ErrorOnAllRanks(problem);
  return window;
}

/// What one host's ranks refuse, by a text that says which of them it is about, is refused by all,
/// before the others wait for them.
std::unique_ptr<tessera::Window> Group::make_windows(const at::Tensor& own,
                                                     const std::string& name) {
  const Levels& levels = member_->levels();
  std::shared_ptr<tessera::Window> inside, flat;
  std::string problem;
  try {
    inside = levels.inside->make_window(own, name);
  } catch (const c10::Error& error) {
    problem = error_text(error);
  }
  std::vector<std::string> problems;  // of the hosts
  for (std::string& text : exchange_texts(*levels.moves, problem, "make_window")) {
    const bool is_known = std::count(problems.begin(), problems.end(), text) > 0;
    if (!text.empty() && !is_known) problems.push_back(std::move(text));
  }
  if (!problems.empty()) throw ErrorOnAllRanks(absl::StrJoin(problems, "\n"));
  flat = levels.flat->make_window(own, name);
  if (windows_++ == 0) cache_ = ReadCache::make(*levels.inside);
  // Of each unit a part as large as this from every rank of another host: for one that some ranks
  // still read, one that is read, one that comes and one that is asked for.
  constexpr int64_t kUnits = 4;
  const int64_t others = levels.layout.ranks() - levels.locals();
  if (cache_ != nullptr) cache_->reserve(kUnits * others * static_cast<int64_t>(own.nbytes()));
  Window::Parts parts{.inside = std::move(inside),
                      .flat = std::move(flat),
                      .cache = cache_,
                      .number = windows_,
                      .host_ranks = host_ranks_of(*levels.inside),
                      .world = world_};
  return std::make_unique<Window>(levels.layout, levels.rank, own, std::move(parts));
}

std::unique_ptr<SharedBuffer> Group::make_shared_buffer(int64_t bytes, std::string_view name) {
  run_in_lane(
      {.op = Op::kSharedBuffer, .tag = name}, [] {}, bytes);
  return nullptr;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  std::shared_ptr<ProcessGroup> made;
  const std::string tag = absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]");
  run_in_lane({.op = Op::kSubgroup, .tag = tag},
              [&] { made = make_subgroup(ranks, std::string(name)); });
  return made;
}

std::shared_ptr<ProcessGroup> Group::make_subgroup(const std::vector<int>& ranks,
                                                   const std::string& name) {
  const Levels& levels = member_->levels();
  HostLayout layout = levels.layout.of(ranks);
  std::vector<int> locals;  // of this host
  for (const int rank : ranks) {
    if (levels.layout.host_of(rank) == levels.host()) {
      locals.push_back(levels.layout.local_of(rank));
    }
  }
  const auto make_inside = [&] {
    return locals.empty() ? nullptr : levels.inside->subgroup(locals, name);
  };
  const auto as_part = [&](std::shared_ptr<ProcessGroup> made) -> std::shared_ptr<ProcessGroup> {
    if (made == nullptr) return nullptr;
    return std::make_shared<PartGroup>(world_, std::move(made),
                                       absl::StrCat(member_->name(), "/", name));
  };
  if (layout.hosts() == 1) return as_part(make_inside());
  auto flat = levels.flat->subgroup(ranks, name);
  if (!layout.is_two_level()) return as_part(std::move(flat));
  auto inside = make_inside();
  if (flat == nullptr) return nullptr;
  return std::make_shared<Group>(
      world_, make_levels(std::move(flat), std::move(inside), std::move(layout)));
}

void Group::abort(std::string_view cause) noexcept { world_->fail(cause); }

std::shared_ptr<ProcessGroup> make_group(std::shared_ptr<ProcessGroup> flat,
                                         std::shared_ptr<ProcessGroup> inside, HostLayout layout) {
  if (!layout.is_two_level()) return flat;
  const auto* const recorded = dynamic_cast<const Recorded*>(flat.get());
  auto flights = recorded == nullptr ? nullptr : recorded->flights();
  const WeakHostRanks host_ranks = host_ranks_of(*inside);
  auto* const watches = dynamic_cast<WatchesHost*>(flat.get());
  if (watches != nullptr) watches->watch(host_ranks);
  flat = std::make_shared<OuterGroup>(std::move(flat), host_ranks);
  auto world = std::make_shared<World>(*flat, *inside, std::move(flights));
  return std::make_shared<Group>(
      std::move(world), make_levels(std::move(flat), std::move(inside), std::move(layout)));
}

}  // namespace tessera::internal::hosts
