#include "tessera/core/comm/nccl/group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/nccl/launch.h"
#include "tessera/core/comm/nccl/memory.h"
#include "tessera/core/device/graph.h"

namespace tessera::internal::nccl {
namespace {

/// Queues the NCCL work of `call` on the lane's stream, after the work on the current stream, and
/// records the event at its end. NCCL's calls may return before NCCL has queued the work, so this
/// waits for that before it records the event.
template <typename Call>
void queue_on(StreamLane& lane, Communicator& communicator, Pending& pending, Call&& call) {
  lane.follow_current();
  check_result(pending, communicator, communicator.call(call));
  await_ready(pending, communicator);
  lane.stream()->record(pending.end());
  pending.mark_launched();
}

/// Throws on all ranks if any rank has a problem. `problem`: this rank's, or "". The error lists
/// the problems of all ranks; in a world of one rank it is just `problem`.
void refuse_together(Pending& pending, const std::string& problem) {
  const auto problems = exchange(pending, "problem", problem);
  const std::string text = refusal_text(problems, "init_process_group");
  if (text.empty()) return;
  pending.mark_finished();
  throw ErrorOnAllRanks(pending.size() == 1 ? problem : text);
}

std::string text_of(const NcclOptions& options) {
  constexpr const char* kMemory[] = {"", "memory kRegistered", "memory kWindows"};
  return absl::StrCat(kMemory[static_cast<int>(options.memory)],
                      options.copy_engine ? " with copy engines" : "");
}

}  // namespace

Group::Group(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
             std::shared_ptr<Communicator> gather, std::shared_ptr<Communicator> reduce)
    : world_(std::move(world)),
      progress_(std::move(progress)),
      rank_(rank),
      gather_(world_->options().device, std::move(gather)),
      reduce_(world_->options().device, std::move(reduce)),
      makes_windows_(world_->options().nccl.memory == NcclOptions::Memory::kWindows),
      own_messages_(rank, world_->options().device,
                    [world = world_, group = progress_->group(), rank](const std::string& tag,
                                                                       const std::string& cause) {
                      world->propose(cause);
                      throw CommError({to_string(Op::kRecv), group, -1, rank, tag}, cause);
                    }) {}

Group::~Group() {
  try {
    if (unwinding_.is_by_own_error()) {
      abort(absl::StrCat("rank ", world_->options().rank, " left while an exception unwound"));
    }
    auto all = communicators();
    if (permuted_ != nullptr) all.push_back(permuted_);
    world_->leave(progress_, std::move(all), {gather_.stream(), reduce_.stream()});
  } catch (...) {  // no memory: the communicators stay until the process ends
  }
}

/// Returns the communicators of the two lanes.
std::vector<std::shared_ptr<Communicator>> Group::communicators() const {
  return {gather_.communicator(), reduce_.communicator()};
}

/// Makes a call in which not all ranks take part, so it has no number.
std::shared_ptr<Pending> Group::make_unnumbered(NumberedCall call, std::shared_ptr<Event> end,
                                                std::vector<at::Tensor> tensors) {
  auto pending = std::make_shared<Pending>(world_, progress_, rank_, std::move(call),
                                           std::move(end), std::move(tensors));
  report_life();
  pending->throw_if_failed();
  return pending;
}

std::shared_ptr<Pending> Group::begin(NumberedCall call, std::shared_ptr<Event> end,
                                      std::vector<at::Tensor> tensors) {
  progress_->begin(call);
  auto pending = make_unnumbered(std::move(call), std::move(end), std::move(tensors));
  pending->carry_out([&] { world_->watch(pending); });
  return pending;
}

std::shared_ptr<Pending> Group::issue(StreamLane& lane, NumberedCall call,
                                      const Collective& collective) {
  auto pending = begin(std::move(call), lane.take_event(), {collective.output, collective.input});
  queue(lane, *pending, collective);
  return pending;
}

void Group::queue(StreamLane& lane, Pending& pending, const Collective& collective) {
  pending.carry_out([&] {
    Communicator& communicator = collective.op == Op::kReduceScatter
                                     ? communicator_for(pending, collective.slice)
                                     : *lane.communicator();
    queue_on(lane, communicator, pending, [&](OpaqueComm* comm) {
      return launch(communicator.api(), collective, rank(), size(), comm, lane.stream()->handle());
    });
  });
}

void Group::check_supported(const Collective& collective) const {
  const std::string lacking = find_lacking(collective);
  if (!lacking.empty()) refuse(collective, lacking);
  TORCH_CHECK(collective.op == Op::kHostGather || !is_capturing(), "[comm] ",
              to_string(collective.op), " '", std::string(collective.tag),
              "': is being captured into a CUDA graph, expected it outside, as the host watches"
              " what NCCL does; end the capture before it");
}

std::shared_ptr<Pending> Group::make_message(const Collective& message,
                                             std::shared_ptr<Event> end) {
  return make_unnumbered(NumberedCall::of(message), std::move(end), {message.output});
}

std::shared_ptr<Work> Group::run_message(const Collective& message) {
  auto pending = make_message(message, gather_.take_event());
  if (message.peer == rank()) return own_messages_.run(message);
  pending->carry_out([&] { world_->watch(pending); });
  queue(gather_, *pending, message);
  return pending;
}

std::vector<std::shared_ptr<Work>> Group::run_batch(const std::vector<Collective>& messages) {
  for (const Collective& message : messages) check_supported(message);
  const auto end = gather_.take_event();  // recorded once, after all messages
  std::vector<std::shared_ptr<Work>> works;
  std::vector<std::shared_ptr<Pending>> begun;
  for (const Collective& message : messages) {
    auto pending = make_message(message, end);
    if (message.peer == rank()) {
      works.push_back(own_messages_.run(message));
    } else {
      works.push_back(pending);
      begun.push_back(std::move(pending));
    }
  }
  if (begun.empty()) return works;
  Pending& first = *begun.front();
  first.carry_out([&] {
    for (const auto& pending : begun) world_->watch(pending);
    Communicator& communicator = *gather_.communicator();
    queue_on(gather_, communicator, first, [&](OpaqueComm* comm) {
      return launch_messages(communicator.api(), messages, rank(), comm,
                             gather_.stream()->handle());
    });
    for (const auto& pending : begun) pending->mark_launched();
  });
  return works;
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  check_supported(collective);
  if (collective.after != nullptr)
    collective.after->wait();  // this makes only the current stream wait
  if (traits_of(collective.op).reduces || collective.op == Op::kAllGather) makes_windows_ = false;
  switch (collective.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
    case Op::kReduce:
      return issue(reduce_, NumberedCall::of(collective), collective);
    case Op::kAllGather:
    case Op::kBroadcast:
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return issue(gather_, NumberedCall::of(collective), collective);
    case Op::kSend:
    case Op::kRecv:
      return run_message(collective);
    case Op::kBarrier:
      return meet(collective);
    case Op::kHostGather:
      return gather_on_host(collective);
    default:
      refuse(collective);
  }
}

std::shared_ptr<Work> Group::meet(const Collective& barrier) {
  if (!token_.defined()) token_ = world_->options().device->allocate(1, at::kInt);
  issue(reduce_, NumberedCall::of(barrier),
        {.op = Op::kAllReduce, .output = token_, .input = token_, .reduce = ReduceOp::kMax})
      ->wait_on_host();
  return completed_work();
}

std::shared_ptr<Work> Group::gather_on_host(const Collective& collective) {
  TORCH_CHECK(!host_channel_->is_open,
              "[comm] all_gather_on_host: got a call while another gather on the host is open,"
              " expected one at a time; wait for that one first");
  const auto pending = begin(NumberedCall::of(collective));
  if (size() == 1) {
    std::memmove(collective.output.mutable_data_ptr(), collective.input.const_data_ptr(),
                 collective.input.nbytes());
    pending->mark_finished();
    return completed_work();
  }
  pending->hold_clock();
  return pending->carry_out([&] {
    return start_store_gather(pending, host_channel_, collective.output, collective.input);
  });
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  const int64_t bytes = check_allocate(numel, dtype);
  const WorldOptions& options = world_->options();
  if (options.nccl.memory == NcclOptions::Memory::kRegistered && bytes > 0) {
    const auto pending = make_unnumbered(NumberedCall::of({.op = Op::kAllocate}));
    return allocate_registered(*pending, communicators(), numel, dtype, bytes,
                               Communicator::Registration::kBuffer);
  }
  if (makes_windows_) {
    const auto pending = begin(NumberedCall::of({.op = Op::kAllocate}));
    const at::Tensor made = pending->carry_out([&] {
      int64_t most_bytes = 0;
      for (const std::string& text : exchange(*pending, "bytes", absl::StrCat(bytes))) {
        most_bytes = std::max<int64_t>(most_bytes, std::stoll(text));
      }
      if (most_bytes == 0) return at::Tensor();
      return allocate_registered(*pending, communicators(), numel, dtype, most_bytes,
                                 Communicator::Registration::kWindow);
    });
    pending->mark_finished();
    if (made.defined()) return made;
  }
  return options.device->allocate(numel, dtype);
}

std::unique_ptr<SharedBuffer> Group::make_shared_buffer(int64_t /*bytes*/, std::string_view name) {
  make_unnumbered(NumberedCall::of({.op = Op::kSharedBuffer, .tag = name}));
  return nullptr;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  const std::string what = absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]");
  const auto pending = begin(NumberedCall::of({.op = Op::kSubgroup, .tag = what}));
  auto made = pending->carry_out([&] {
    exchange(*pending, "call", {});
    drain(*pending);
    return split_off(*pending, ranks,
                     absl::StrCat(std::string(this->name()), "/", std::string(name)));
  });
  pending->mark_finished();
  return made;
}

/// Does this rank's part in making a group of `ranks`. Returns null if this rank is not in it.
std::shared_ptr<Group> Group::split_off(Pending& pending, const std::vector<int>& ranks,
                                        const std::string& group) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  const bool is_member = found != ranks.end();
  const int own = static_cast<int>(found - ranks.begin());
  const auto reduce = split(pending, *reduce_.communicator(), is_member ? 0 : kNoColor, rank(),
                            absl::StrCat(group, ": reduce lane"));
  if (!is_member) return nullptr;
  const auto gather = split(pending, *reduce, 0, own, absl::StrCat(group, ": gather lane"),
                            world_->options().nccl.copy_engine);
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(progress_->world_ranks()[rank]);
  auto progress = std::make_shared<Progress>(group, std::move(world_ranks));
  auto made = std::make_shared<Group>(world_, progress, own, gather, reduce);
  world_->enter(std::move(progress));
  return made;
}

void Group::abort(std::string_view cause) noexcept { world_->propose(cause); }

Communicator& Group::communicator_for(Pending& pending, int slice) {
  if (!slice_) agree_on_slices(pending, slice);
  if (*slice_ != slice) {
    pending.fail(absl::StrCat(progress_->name_of(rank()), " asked for slice ", slice, " of ",
                              pending.call().text(), " after slice ", *slice_,
                              "; on NCCL a group's slices stay as its first reduce_scatter has "
                              "them, so duplicate() the group"));
  }
  return permuted_ == nullptr ? *reduce_.communicator() : *permuted_;
}

/// Runs once per group. The ranks tell each other which slice each of them asks for. NCCL itself
/// gives rank r slice r. For any other order this makes a communicator in which the ranks are
/// numbered by their slices.
void Group::agree_on_slices(Pending& pending, int slice) {
  const auto texts = exchange(pending, "slice", absl::StrCat(slice));
  bool is_usual = true;
  for (int rank = 0; rank < size(); ++rank) {
    is_usual = is_usual && texts[rank] == absl::StrCat(rank);
    for (int other = 0; other < rank; ++other) {
      if (texts[rank] != texts[other]) continue;
      pending.fail(slice_mismatch(progress_->name_of(rank), progress_->name_of(other),
                                  std::stoi(texts[rank]), pending.call().text()));
    }
  }
  if (!is_usual) {
    drain(pending);
    permuted_ = split(pending, *reduce_.communicator(), 0, slice,
                      absl::StrCat(pending.group(), ": permuted reduce lane"));
  }
  slice_ = slice;
}

/// Waits until nothing is in flight on the reduce lane, as a split of its communicator requires.
void Group::drain(Pending& pending) {
  const auto end = reduce_.take_event();
  reduce_.stream()->record(*end);
  pending.await([&] { return end->is_done(); });
}

std::shared_ptr<Group> make_world(WorldOptions options) {
  const int rank = options.rank;
  std::vector<int> ranks(options.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto progress = std::make_shared<Progress>("world", std::move(ranks));
  const auto world = World::start(std::move(options), progress);
  try {
    const NcclOptions& nccl = world->options().nccl;
    // The options are in the tag of this call, so ranks with different options report calls that
    // differ.
    const std::string wanted = text_of(nccl);
    const auto pending = std::make_shared<Pending>(
        world, progress, rank, NumberedCall::of({.op = Op::kInit, .tag = wanted}), nullptr,
        std::vector<at::Tensor>());
    world->watch(pending);
    refuse_together(*pending, world->options().problem);
    auto reduce = meet(*pending);
    auto gather = split(*pending, *reduce, 0, rank, "world: gather lane", nccl.copy_engine);
    pending->mark_finished();
    return std::make_shared<Group>(world, progress, rank, std::move(gather), std::move(reduce));
  } catch (const ErrorOnAllRanks&) {
    world->leave(progress, {}, {});
    throw;
  } catch (const std::exception& error) {
    world->propose(absl::StrCat("rank ", rank, " failed at start: ", error.what()));
    world->leave(progress, {}, {});
    throw;
  }
}

}  // namespace tessera::internal::nccl
