// NCCL's C interface over threads and host memory. One lock guards everything, because speed does
// not matter here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

#include "tessera/tests/support/fake_nccl/fake_state.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

namespace {

using nccl::OpaqueComm;
using nccl::Result;

thread_local int depth = 0;
thread_local int group = 0;
thread_local std::vector<std::function<void()>> queued;  // by the open group

void record_call(const char* function, const OpaqueComm* comm, const Part* part,
                 const void* stream) {
  FakeCall call;
  call.function = function;
  if (comm != nullptr) {
    call.communicator = comm->name;
    call.rank = comm->rank;
  }
  if (part != nullptr) {
    call.numel = part->numel;
    call.dtype = static_cast<int>(part->dtype);
    call.op = static_cast<int>(part->op);
    call.is_in_window = part->reached.window >= 0;
    call.is_run_by_copy_engine = call.is_in_window && part->is_other_in &&
                                 call.function == "ncclAllGather" &&
                                 comm->cta_policy == nccl::kZeroCtaPolicy;
  }
  call.stream = stream;
  call.group = depth > 0 ? group : 0;
  state().calls.push_back(std::move(call));
}

/// Under the lock, on a stream's thread: a kernel of the communicator that waits, as kernels do,
/// until `is_over` returns true.
template <typename Condition>
void occupy_device(std::unique_lock<std::mutex>& lock, OpaqueComm& comm, Condition is_over) {
  ++comm.running;
  state().changed.wait(lock, is_over);
  --comm.running;
  state().changed.notify_all();
}

/// Runs a rank's part of collective `number` on a stream's thread: like a kernel, it waits for its
/// peers until it has its result or is aborted.
void run_part(const std::shared_ptr<OpaqueComm>& comm, uint64_t number, Part part) {
  State& all = state();
  std::unique_lock<std::mutex> lock(all.mutex);
  const std::shared_ptr<Clique> clique = comm->clique;
  auto& collective = clique->collectives[number];
  collective.parts.resize(clique->size);
  part.here = true;
  collective.parts[comm->rank] = std::move(part);
  ++collective.arrived;
  all.changed.notify_all();
  occupy_device(lock, *comm, [&] {
    if (comm->aborted || collective.over) return true;
    if (clique->broken || collective.arrived < clique->size || all.held) return false;
    if (!fit(collective)) return false;
    collective.order.resize(clique->size);
    std::iota(collective.order.begin(), collective.order.end(), 0);
    std::sort(collective.order.begin(), collective.order.end(),
              [&](int a, int b) { return clique->world_ranks[a] < clique->world_ranks[b]; });
    perform(collective);
    collective.over = true;
    all.changed.notify_all();
    return true;
  });
}

/// Advances a communicator. Returns true if nothing is in progress.
bool advance(OpaqueComm& comm) {
  if (!comm.waiting.empty() && comm.questions > 0) {
    --comm.questions;
    return false;
  }
  while (!comm.waiting.empty()) {
    if (!comm.waiting.front()()) return false;
    comm.waiting.pop_front();
  }
  return true;
}

Part part_of(const void* send, void* receive, size_t numel, nccl::DataType dtype) {
  Part part;
  part.send = send;
  part.receive = receive;
  part.numel = numel;
  part.dtype = dtype;
  return part;
}

Result collective(const char* function, Part part, OpaqueComm* comm, void* stream) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  part.function = function;
  if (part.function != "ncclBroadcast") {
    const bool reads = part.function == "ncclReduceScatter";
    part.reached = place_of(*comm, reads ? part.send : part.receive);
    part.is_other_in = place_of(*comm, reads ? part.receive : part.send).window >= 0;
  }
  record_call(function, comm, &part, stream);
  Result failure = Result::kSuccess;
  if (takes_failure(function, failure)) return failure;
  const auto held = hold_of(comm);
  auto launch = [held, stream, part = std::move(part)] {
    begin(*held, [held, stream, part, number = held->collectives++] {
      struct Kernel {
        std::shared_ptr<OpaqueComm> comm;
        uint64_t number;
        Part part;
      };
      const auto* handle = static_cast<const HostStreamHandle*>(stream);
      handle->enqueue(
          handle->stream,
          [](void* argument) {
            const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
            run_part(kernel->comm, kernel->number, std::move(kernel->part));
          },
          new Kernel{held, number, part});
      return true;
    });
  };
  if (depth > 0) {
    queued.push_back(std::move(launch));
  } else {
    launch();
  }
  return Result::kInProgress;
}

/// The sends and receives of one group of calls on one communicator and stream: one kernel.
struct Messages {
  std::shared_ptr<OpaqueComm> comm;
  void* stream = nullptr;
  std::vector<std::shared_ptr<Clique::Transfer>> transfers;
};
thread_local std::vector<Messages> queued_messages;  // by the open group

void run_messages(const Messages& messages) {
  State& all = state();
  std::unique_lock<std::mutex> lock(all.mutex);
  const std::shared_ptr<Clique> clique = messages.comm->clique;
  for (const auto& one : messages.transfers) {
    auto& line = clique->lines[{one->from, one->to}];
    (one->send != nullptr ? line.sends : line.receives).push_back(one);
  }
  all.changed.notify_all();
  occupy_device(lock, *messages.comm, [&] {
    if (messages.comm->aborted) return true;
    if (clique->broken || all.held) return false;
    for (auto& [ends, line] : clique->lines) transfer(line);
    all.changed.notify_all();
    return std::all_of(messages.transfers.begin(), messages.transfers.end(),
                       [](const auto& one) { return one->over; });
  });
}

void launch_messages(Messages messages) {
  const auto held = messages.comm;
  begin(*held, [messages = std::move(messages)] {
    const auto* handle = static_cast<const HostStreamHandle*>(messages.stream);
    handle->enqueue(
        handle->stream,
        [](void* argument) {
          const std::unique_ptr<Messages> kernel(static_cast<Messages*>(argument));
          run_messages(*kernel);
        },
        new Messages(messages));
    return true;
  });
}

Result message(const char* function, Part part, bool sends, OpaqueComm* comm, void* stream) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  part.function = function;
  record_call(function, comm, &part, stream);
  Result failure = Result::kSuccess;
  if (takes_failure(function, failure)) return failure;
  auto one = std::make_shared<Clique::Transfer>();
  one->from = sends ? comm->rank : part.root;
  one->to = sends ? part.root : comm->rank;
  static const char nothing = 0;
  one->send = sends && part.send == nullptr ? &nothing : part.send;
  one->receive = part.receive;
  one->numel = part.numel;
  one->dtype = part.dtype;
  const auto open =
      std::find_if(queued_messages.begin(), queued_messages.end(), [&](const Messages& messages) {
        return messages.comm.get() == comm && messages.stream == stream;
      });
  if (open != queued_messages.end()) {
    open->transfers.push_back(std::move(one));
    return Result::kInProgress;
  }
  Messages messages{hold_of(comm), stream, {std::move(one)}};
  if (depth > 0) {
    queued_messages.push_back(std::move(messages));
  } else {
    launch_messages(std::move(messages));
  }
  return Result::kInProgress;
}

/// Under the lock.
void end(OpaqueComm* comm, bool is_abort) {
  State& all = state();
  forget_memory(*comm, is_abort);
  comm->aborted = true;
  comm->waiting.clear();
  comm->clique->finalized[comm->rank] = true;
  comm->clique->broken = true;
  all.live.erase(comm);
  all.changed.notify_all();
}

thread_local std::vector<OpaqueComm*> queued_aborts;  // by the open group

/// The rank of the world, and so the device, that the communicator belongs to.
int device_of(const OpaqueComm& comm) { return comm.clique->world_ranks[comm.rank]; }

/// Under the lock. As in NCCL, an abort waits until the device is idle, so it also waits for a
/// collective of another communicator that is not aborted with it.
void abort_all(std::unique_lock<std::mutex>& lock, const std::vector<OpaqueComm*>& comms) {
  State& all = state();
  std::vector<std::shared_ptr<OpaqueComm>> ended;  // stay readable
  for (OpaqueComm* comm : comms) {
    ended.push_back(hold_of(comm));
    end(comm, true);
  }
  all.changed.wait(lock, [&] {
    if (all.aborts_held) return false;
    return std::all_of(ended.begin(), ended.end(), [&](const auto& one) {
      return std::none_of(all.live.begin(), all.live.end(), [&](const OpaqueComm* other) {
        return other->running > 0 && device_of(*other) == device_of(*one);
      });
    });
  });
}

}  // namespace

void record(const char* function, const OpaqueComm* comm) {
  record_call(function, comm, nullptr, nullptr);
}

}  // namespace tessera::internal::testing

using namespace tessera::internal::testing;  // NOLINT: the C interface below is the fake's own
using tessera::internal::nccl::DataType;
using tessera::internal::nccl::RedOp;
using tessera::internal::nccl::UniqueId;

using tessera::internal::nccl::OpaqueComm;
using tessera::internal::nccl::Result;

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22809;
  return Result::kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::memset(id->internal, 0x5a, UniqueId::kBytes);  // not text, as in NCCL
  const int number = ++state().ids;
  std::memset(id->internal, 0, 4);
  std::memcpy(id->internal + 4, &number, sizeof(number));
  record("ncclGetUniqueId", nullptr);
  return Result::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case Result::kSuccess:
      return "no error";
    case Result::kRemoteError:
      return "remote process exited or there was a network error";
    case Result::kSystemError:
      return "unhandled system error";
    default:
      return "invalid usage";
  }
}

const char* ncclGetLastError(OpaqueComm* /*comm*/) { return "the fake was told so"; }

Result ncclCommFinalize(OpaqueComm* comm) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  record("ncclCommFinalize", comm);
  comm->clique->finalized[comm->rank] = true;
  return begin(*comm, [clique = comm->clique] {
    return std::all_of(clique->finalized.begin(), clique->finalized.end(),
                       [](bool one) { return one; });
  });
}

Result ncclCommDestroy(OpaqueComm* comm) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclCommDestroy", comm);
  end(comm, false);
  return Result::kSuccess;
}

Result ncclCommAbort(OpaqueComm* comm) {
  std::unique_lock<std::mutex> lock(state().mutex);
  record("ncclCommAbort", comm);
  comm->questions = 0;
  advance(*comm);  // ends a split under way, if all ranks have come
  if (depth > 0) {
    queued_aborts.push_back(comm);
  } else {
    abort_all(lock, {comm});
  }
  return Result::kSuccess;
}

Result ncclCommGetAsyncError(OpaqueComm* comm, Result* result) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto broken = state().broken.find({comm->name, comm->rank});
  if (broken != state().broken.end()) {
    *result = broken->second;
  } else {
    *result = advance(*comm) ? Result::kSuccess : Result::kInProgress;
  }
  return Result::kSuccess;
}

Result ncclGroupStart() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (depth++ == 0) group = ++state().groups;
  record("ncclGroupStart", nullptr);
  return Result::kSuccess;
}

Result ncclGroupEnd() {
  std::unique_lock<std::mutex> lock(state().mutex);
  record("ncclGroupEnd", nullptr);
  if (--depth > 0) return Result::kSuccess;
  if (!queued_aborts.empty()) abort_all(lock, std::exchange(queued_aborts, {}));
  for (const auto& launch : queued) launch();
  for (Messages& messages : queued_messages) launch_messages(std::move(messages));
  const bool is_empty = queued.empty() && queued_messages.empty();
  queued.clear();
  queued_messages.clear();
  return is_empty ? Result::kSuccess : Result::kInProgress;
}

Result ncclAllReduce(const void* send, void* receive, size_t numel, DataType dtype, RedOp op,
                     OpaqueComm* comm, void* stream) {
  Part part = part_of(send, receive, numel, dtype);
  part.op = op;
  return collective("ncclAllReduce", std::move(part), comm, stream);
}

Result ncclReduceScatter(const void* send, void* receive, size_t numel, DataType dtype, RedOp op,
                         OpaqueComm* comm, void* stream) {
  Part part = part_of(send, receive, numel, dtype);
  part.op = op;
  return collective("ncclReduceScatter", std::move(part), comm, stream);
}

Result ncclAllGather(const void* send, void* receive, size_t numel, DataType dtype,
                     OpaqueComm* comm, void* stream) {
  Part part = part_of(send, receive, numel, dtype);
  return collective("ncclAllGather", std::move(part), comm, stream);
}

Result ncclBroadcast(const void* send, void* receive, size_t numel, DataType dtype, int root,
                     OpaqueComm* comm, void* stream) {
  Part part = part_of(send, receive, numel, dtype);
  part.root = root;
  return collective("ncclBroadcast", std::move(part), comm, stream);
}

Result ncclReduce(const void* send, void* receive, size_t numel, DataType dtype, RedOp op, int root,
                  OpaqueComm* comm, void* stream) {
  Part part = part_of(send, receive, numel, dtype);
  part.op = op;
  part.root = root;
  return collective("ncclReduce", std::move(part), comm, stream);
}

Result ncclSend(const void* send, size_t numel, DataType dtype, int peer, OpaqueComm* comm,
                void* stream) {
  Part part = part_of(send, nullptr, numel, dtype);
  part.root = peer;
  return message("ncclSend", std::move(part), true, comm, stream);
}

Result ncclRecv(void* receive, size_t numel, DataType dtype, int peer, OpaqueComm* comm,
                void* stream) {
  Part part = part_of(nullptr, receive, numel, dtype);
  part.root = peer;
  return message("ncclRecv", std::move(part), false, comm, stream);
}

}  // extern "C"
