#include "tessera/core/comm/nccl/group.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/nccl/host_gather.h"
#include "tessera/core/comm/nccl/launch.h"
#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/core/device/graph.h"

namespace tessera::internal::nccl {

Group::Group(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
             std::shared_ptr<Communicator> gather, std::shared_ptr<Communicator> reduce)
    : world_(std::move(world)),
      progress_(std::move(progress)),
      rank_(rank),
      gather_(world_->options().device, std::move(gather)),
      reduce_(world_->options().device, std::move(reduce)),
      host_channel_(std::make_shared<ControlChannel>(world_, rank, "host")),
      memory_(world_, {gather_.communicator(), reduce_.communicator()}),
      makes_windows_(world_->options().nccl.memory == NcclOptions::Memory::kWindows),
      compare_channel_(world_, rank, "call"),
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
    std::vector<std::shared_ptr<Communicator>> communicators = {gather_.communicator(),
                                                                reduce_.communicator()};
    if (permuted_ != nullptr) communicators.push_back(permuted_);
    world_->leave(progress_, std::move(communicators), {gather_.stream(), reduce_.stream()});
  } catch (...) {  // no memory: the communicators stay until the process ends
  }
}

std::shared_ptr<Pending> Group::make_pending(NumberedCall call, std::shared_ptr<Event> end,
                                             std::vector<at::Tensor> tensors) {
  progress_->begin(call);
  auto pending = std::make_shared<Pending>(world_, progress_, rank_, std::move(call),
                                           std::move(end), std::move(tensors));
  pending->throw_if_failed();
  return pending;
}

std::shared_ptr<Pending> Group::begin(NumberedCall call, std::shared_ptr<Event> end,
                                      std::vector<at::Tensor> tensors) {
  auto pending = make_pending(std::move(call), std::move(end), std::move(tensors));
  pending->carry_out([&] { world_->watch(pending); });
  return pending;
}

std::shared_ptr<Pending> Group::issue(StreamLane& lane, NumberedCall call,
                                      const Collective& collective) {
  TORCH_CHECK(!is_capturing(), "[comm] ", to_string(call.signature.op), " '", call.tag,
              "': is being captured into a CUDA graph, expected it outside, as NCCL's collectives"
              " are watched by the host here; end the capture before it");
  auto pending = begin(std::move(call), lane.take_event(), {collective.output, collective.input});
  if (world_->options().compare == WorldOptions::Compare::kAlways) {
    pending->carry_out([&] { compare_channel_.exchange(*pending, {}); });
  }
  issue(lane, pending, collective);
  return pending;
}

void Group::issue(StreamLane& lane, const std::shared_ptr<Pending>& pending,
                  const Collective& collective) {
  pending->carry_out([&] {
    const std::shared_ptr<Communicator> communicator =
        collective.op == Op::kReduceScatter ? communicator_for(*pending, collective.slice)
                                            : lane.communicator();
    lane.follow_current();
    const auto result = communicator->call([&](OpaqueComm* comm) {
      return nccl::launch(communicator->api(), collective, rank(), size(), comm,
                          lane.stream()->handle());
    });
    check_result(*world_, *pending, *communicator, result);
    const Issued issued{&lane, communicator, pending};
    if (open_batch_ != nullptr) {
      open_batch_->push_back(issued);
    } else {
      launch({issued});
    }
  });
}

/// Without a number: the others do not take part.
std::shared_ptr<Work> Group::run_message(const Collective& message) {
  TORCH_CHECK(!is_capturing(), "[comm] ", to_string(message.op), " '", std::string(message.tag),
              "': is being captured into a CUDA graph, expected it outside, as NCCL's messages are"
              " watched by the host here; end the capture before it");
  auto pending =
      std::make_shared<Pending>(world_, progress_, rank_, NumberedCall::of(message),
                                gather_.take_event(), std::vector<at::Tensor>{message.output});
  pending->throw_if_failed();
  if (message.peer == rank()) {
    return message.op == Op::kSend ? own_messages_.send(message) : own_messages_.receive(message);
  }
  pending->carry_out([&] { world_->watch(pending); });
  issue(gather_, pending, message);
  return pending;
}

std::vector<std::shared_ptr<Work>> Group::run_batch(const std::vector<Collective>& messages) {
  for (const Collective& message : messages) {
    if (const std::string lacking = find_lacking(message); !lacking.empty()) {
      refuse(message, lacking);
    }
  }
  std::vector<std::shared_ptr<Work>> works;
  batch([&] {
    for (const Collective& message : messages) works.push_back(run(message));
  });
  return works;
}

/// Ends what issuing has begun. NCCL's calls return before their work is on the stream; an event
/// recorded before it is would be over too early.
void Group::launch(const std::vector<Issued>& batch) {
  for (const Issued& issued : batch) await_ready(*world_, *issued.pending, *issued.communicator);
  for (const Issued& issued : batch) {
    issued.lane->stream()->record(issued.pending->end());
    issued.pending->mark_launched();
  }
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  if (const std::string lacking = find_lacking(collective); !lacking.empty()) {
    refuse(collective, lacking);
  }
  if (collective.after != nullptr) collective.after->wait();  // the current stream does
  switch (collective.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      return issue(reduce_, call_in_place(collective), collective);
    case Op::kReduce:
      return issue(reduce_, NumberedCall::of(collective), collective);
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return issue(gather_, NumberedCall::of(collective), collective);
    case Op::kSend:
    case Op::kRecv:
      return run_message(collective);
    case Op::kAllGather:
      return issue(gather_, call_in_place(collective), collective);
    case Op::kBroadcast:
      return issue(gather_, NumberedCall::of(collective), collective);
    case Op::kBarrier:
      return meet(collective);
    case Op::kHostGather:
      return gather_on_host(collective);
    default:
      refuse(collective);
  }
}

std::shared_ptr<Work> Group::meet(const Collective& barrier) {
  check_outside_batch("barrier");
  if (!token_.defined()) token_ = world_->options().device->allocate(1, at::kInt);
  issue(reduce_, NumberedCall::of(barrier),
        {.op = Op::kAllReduce, .output = token_, .input = token_, .reduce = ReduceOp::kMax})
      ->wait_on_host();
  return completed_work();
}

std::shared_ptr<Work> Group::gather_on_host(const Collective& collective) {
  check_outside_batch("all_gather_on_host");
  TORCH_CHECK(!host_channel_->is_open(),
              "[comm] all_gather_on_host: got a call while another gather on the host is open,"
              " expected one at a time; wait for that one first");
  auto pending = make_pending(NumberedCall::of(collective), nullptr, {});
  pending->hold_clock();
  return pending->carry_out([&] {
    world_->watch(pending);
    return std::make_shared<HostGather>(pending, host_channel_, collective.output,
                                        collective.input);
  });
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  const int64_t bytes = check_allocate(numel, dtype);
  const WorldOptions& options = world_->options();
  if (options.nccl.memory == NcclOptions::Memory::kRegistered && bytes > 0) {
    check_outside_batch("allocate");
    // No number: the others need not do the same.
    Pending pending(world_, progress_, rank_, NumberedCall::of(Op::kAllocate), nullptr, {});
    pending.throw_if_failed();
    return memory_.allocate_buffer(pending, numel, dtype);
  }
  if (makes_windows_) {
    check_outside_batch("allocate");
    const auto pending = begin(NumberedCall::of(Op::kAllocate), nullptr, {});
    const at::Tensor made = pending->carry_out([&] {
      int64_t most_bytes = 0;
      for (const std::string& text : compare_channel_.exchange(*pending, absl::StrCat(bytes))) {
        int64_t other_bytes = 0;
        if (absl::SimpleAtoi(text, &other_bytes)) most_bytes = std::max(most_bytes, other_bytes);
      }
      if (most_bytes == 0) return at::Tensor();
      return memory_.allocate_window(*pending, rank_, numel, dtype, most_bytes);
    });
    pending->mark_finished();
    if (made.defined()) return made;
  }
  return options.device->allocate(numel, dtype);
}

/// Ranks whose tensors lie in different windows hang in NCCL; their calls then differ.
NumberedCall Group::call_in_place(const Collective& collective) {
  NumberedCall call = NumberedCall::of(collective);
  if (world_->options().nccl.memory != NcclOptions::Memory::kWindows) return call;
  makes_windows_ = false;
  const bool is_gather = collective.op == Op::kAllGather;
  const at::Tensor& reached = is_gather ? collective.output : collective.input;
  call.place = memory_.place_of(reached, is_gather ? collective.input : collective.output);
  return call;
}

std::unique_ptr<SharedBuffer> Group::make_shared_buffer(int64_t /*bytes*/, std::string_view name) {
  // Known without asking anyone, so it is no collective here.
  Pending(world_, progress_, rank_, NumberedCall::of(Op::kSharedBuffer, name), nullptr, {})
      .throw_if_failed();
  return nullptr;
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  check_outside_batch("subgroup");
  subgroup_names_.insert(std::string(name));
  const auto pending = begin(
      NumberedCall::of(Op::kSubgroup,
                       absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]")),
      nullptr, {});
  auto made = pending->carry_out([&] {
    compare_channel_.exchange(*pending, {});
    drain(*pending);
    return split_off(*pending, ranks,
                     absl::StrCat(std::string(this->name()), "/", std::string(name)));
  });
  pending->mark_finished();
  return made;
}

/// This rank's part in making a group of `ranks`; null if it is none of them.
std::shared_ptr<Group> Group::split_off(Pending& pending, const std::vector<int>& ranks,
                                        const std::string& group) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  const bool is_member = found != ranks.end();
  const int own = static_cast<int>(found - ranks.begin());
  const auto reduce = split(*world_, pending, *reduce_.communicator(), is_member ? 0 : kNoColor,
                            rank(), lane_name(group, "reduce"));
  if (!is_member) return nullptr;
  const auto gather =
      split(*world_, pending, *reduce, 0, own, lane_name(group, "gather"), gather_engine(*world_));
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(progress_->world_ranks()[rank]);
  auto progress = std::make_shared<Progress>(group, std::move(world_ranks));
  auto made = std::make_shared<Group>(world_, progress, own, gather, reduce);
  world_->enter(std::move(progress));
  return made;
}

void Group::abort(std::string_view cause) noexcept { world_->propose(cause); }

void Group::batch(const std::function<void()>& issue_all) {
  check_outside_batch("batch");
  const Api& api = *world_->options().api;
  std::vector<Issued> issued;
  std::exception_ptr error;
  Result ended = Result::kSuccess;
  {
    // Aborting a communicator that an open group of calls names would pull it from under NCCL.
    const auto gather = gather_.communicator()->hold();
    const auto reduce = reduce_.communicator()->hold();
    const auto permuted =
        permuted_ == nullptr ? std::unique_lock<std::recursive_mutex>() : permuted_->hold();
    api.group_start();
    open_batch_ = &issued;
    try {
      issue_all();
    } catch (...) {
      error = std::current_exception();
    }
    open_batch_ = nullptr;
    ended = api.group_end();
  }
  // After a failure nothing of this is worth waiting for.
  if (error != nullptr) {
    // The others wait for the rest. Before the first call it is as if there were no batch.
    if (!issued.empty()) {
      world_->propose_left(absl::StrCat("batch() on group '", std::string(name()), "' after ",
                                        issued.size(), " of its calls"),
                           error);
    }
    std::rethrow_exception(error);
  }
  if (issued.empty() || world_->is_failed()) return;
  Pending& first = *issued.front().pending;
  first.carry_out([&] {
    check_result(*world_, first, *issued.front().communicator, ended);
    launch(issued);
  });
}

void Group::check_outside_batch(const char* op) const {
  TORCH_CHECK(open_batch_ == nullptr, "[comm] ", op, ": got a call inside batch(), expected it",
              " outside; a batch takes collectives that run on the device");
}

const std::shared_ptr<Communicator>& Group::communicator_for(Pending& pending, int slice) {
  if (!slice_) agree_on_slices(pending, slice);
  if (*slice_ != slice) {
    pending.fail(absl::StrCat(progress_->name_of(rank()), " asked for slice ", slice, " of ",
                              pending.call().text(), " after slice ", *slice_,
                              "; on NCCL a group's slices stay as its first reduce_scatter has "
                              "them, so duplicate() the group"));
  }
  return permuted_ == nullptr ? reduce_.communicator() : permuted_;
}

/// NCCL gives rank r slice r, so other slices need a communicator whose ranks are the slices. A
/// rank cannot see that others ask for other slices than theirs; hence all tell all, once.
void Group::agree_on_slices(Pending& pending, int slice) {
  const auto texts = exchange(*world_, pending, rank(), "slice", absl::StrCat(slice));
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
    if (open_batch_ != nullptr) pending.mark_finished();  // all ranks refuse it
    check_outside_batch("reduce_scatter: the first one with other slices than the ranks'");
    drain(pending);
    permuted_ = split(*world_, pending, *reduce_.communicator(), 0, slice,
                      lane_name(name(), "permuted reduce"));
  }
  slice_ = slice;
}

/// Splitting a communicator asks that nothing is in flight on it.
void Group::drain(Pending& pending) {
  const auto end = reduce_.take_event();
  reduce_.stream()->record(*end);
  pending.await([&] { return end->is_done(); });
}

}  // namespace tessera::internal::nccl
