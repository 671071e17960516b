// NCCL's memory and its registration. A caller's mistake is recorded as a complaint.
#include <cstdlib>
#include <cstring>

#include "tessera/tests/support/fake_nccl/fake_state.h"

namespace tessera::internal::testing {

WindowPlace place_of(const OpaqueComm& comm, const void* data) {
  const auto* address = static_cast<const char*>(data);
  for (const auto& [handle, registered] : comm.registered) {
    const bool is_in = address >= registered.data && address < registered.data + registered.bytes;
    if (is_in && registered.window >= 0) return {registered.window, address - registered.data};
  }
  return {};
}

void forget_memory(OpaqueComm& comm, bool is_abort) {
  if (!comm.registered.empty() && !is_abort) {
    state().complaints.push_back("destroyed '" + comm.name + "' with registered memory");
  }
  comm.registered.clear();
}

}  // namespace tessera::internal::testing

namespace tessera::internal::testing {
namespace {

std::string name_of(const OpaqueComm& comm) {
  return "'" + comm.name + "' of rank " + std::to_string(comm.rank);
}

void complain(std::string text) { state().complaints.push_back(std::move(text)); }

bool is_ours(const char* data, size_t bytes) {
  auto next = state().memory.upper_bound(data);
  if (next == state().memory.begin()) return false;
  --next;
  return data + bytes <= next->first + next->second;
}

Result enlist(OpaqueComm& comm, const void* data, size_t bytes, int window, int64_t& handle) {
  const auto* first = static_cast<const char*>(data);
  if (!is_ours(first, bytes)) {
    complain("registered what is not from ncclMemAlloc with " + name_of(comm));
    return Result::kInvalidArgument;
  }
  handle = ++state().handles;
  comm.registered[handle] = {first, bytes, window};
  return Result::kSuccess;
}

Result delist(OpaqueComm& comm, const char* function, int64_t handle) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record(function, &comm);
  if (comm.registered.erase(handle) == 1) return Result::kSuccess;
  complain(std::string(function) + " of what is not registered with " + name_of(comm));
  return Result::kInvalidUsage;
}

}  // namespace
}  // namespace tessera::internal::testing

using namespace tessera::internal::testing;  // NOLINT: the C interface below is the fake's own
using tessera::internal::nccl::OpaqueComm;
using tessera::internal::nccl::OpaqueWindow;
using tessera::internal::nccl::Result;

extern "C" {

Result ncclMemAlloc(void** data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclMemAlloc", nullptr);
  Result failure = Result::kSuccess;
  if (takes_failure("ncclMemAlloc", failure)) return failure;
  constexpr size_t kAlignment = tessera::internal::nccl::kWindowAlignment;
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*data, 0xFF, bytes);
  state().memory[static_cast<const char*>(*data)] = bytes;
  return Result::kSuccess;
}

Result ncclMemFree(void* data) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclMemFree", nullptr);
  for (const OpaqueComm* comm : state().live) {
    for (const auto& [handle, registered] : comm->registered) {
      if (registered.data != data) continue;
      state().complaints.push_back("freed memory that is registered with '" + comm->name + "'");
    }
  }
  if (state().memory.erase(static_cast<const char*>(data)) == 0) {
    state().complaints.push_back("freed what is not from ncclMemAlloc");
    return Result::kInvalidArgument;
  }
  std::free(data);
  return Result::kSuccess;
}

Result ncclCommRegister(const OpaqueComm* comm, void* data, size_t bytes, void** handle) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclCommRegister", comm);
  int64_t number = 0;
  const Result result = enlist(const_cast<OpaqueComm&>(*comm), data, bytes, -1, number);
  *handle = reinterpret_cast<void*>(number);
  return result;
}

Result ncclCommDeregister(const OpaqueComm* comm, void* handle) {
  return delist(const_cast<OpaqueComm&>(*comm), "ncclCommDeregister",
                reinterpret_cast<int64_t>(handle));
}

Result ncclCommWindowRegister(OpaqueComm* comm, void* data, size_t bytes, OpaqueWindow** window,
                              int flags) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclCommWindowRegister", comm);
  *window = nullptr;
  constexpr int64_t kAlignment = tessera::internal::nccl::kWindowAlignment;
  if (flags != tessera::internal::nccl::kSymmetricWindow ||
      reinterpret_cast<int64_t>(data) % kAlignment != 0) {
    return Result::kInvalidArgument;
  }
  if (state().refuses_windows) return Result::kSuccess;
  auto& windows = comm->clique->windows;
  const int number = comm->windows++;
  windows.resize(std::max<size_t>(windows.size(), static_cast<size_t>(number) + 1));
  auto& all = windows[static_cast<size_t>(number)];
  if (all.arrived++ == 0) all.bytes = bytes;
  if (all.bytes != bytes) {
    all.fits = false;
    state().complaints.push_back("a window of different sizes");
  }
  // As in NCCL, the window is there when the communicator is no longer in progress.
  return begin(*comm, [comm, data, bytes, window, number] {
    const auto& every = comm->clique->windows[static_cast<size_t>(number)];
    if (every.arrived < comm->clique->size || !every.fits) return false;
    int64_t handle = 0;
    if (enlist(*comm, data, bytes, number, handle) == Result::kSuccess) {
      *window = reinterpret_cast<OpaqueWindow*>(handle);
    }
    return true;
  });
}

Result ncclCommWindowDeregister(OpaqueComm* comm, OpaqueWindow* window) {
  return delist(*comm, "ncclCommWindowDeregister", reinterpret_cast<int64_t>(window));
}

}  // extern "C"
