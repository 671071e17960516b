#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {

/// One NCCL communicator of this rank, made with blocking=0: no call waits for a peer, and poll()
/// says when an operation has finished. Thread-safe: one thread issues operations, another polls
/// for errors and finishes or aborts the communicator, after which calls do nothing. The owner must
/// do that; the destructor does not, because both may take long.
class Communicator {
 public:
  /// `name` is what NCCL's own logs call it. `uses_copy_engines`: for all-gathers in windows.
  Communicator(std::shared_ptr<const Api> api, std::string name, bool uses_copy_engines = false);

  const std::string& name() const { return name_; }
  const Api& api() const { return *api_; }

  /// Begins to connect to the other ranks that have the same id.
  Result init(int size, int rank, const UniqueId& id);

  /// Collective over this communicator's ranks; nothing may be in flight on it. Begins to make
  /// `child` of the ranks with the same colour, ordered by key; a rank with kNoColor leaves it
  /// empty. `child` must stay alive until this one's poll() has an answer; when that is kSuccess,
  /// child.complete_split() opens it.
  std::optional<Result> split(int color, int key, Communicator& child);
  void complete_split();

  /// Registers memory from ncclMemAlloc. kBuffer is local; kWindow is collective over its ranks,
  /// with equal sizes, and finished when poll() says so.
  enum class Registration : uint8_t { kBuffer, kWindow };
  std::optional<Result> register_memory(void* data, size_t bytes, Registration kind);
  /// Local. Whether NCCL has made the window, once poll() says kSuccess.
  bool has_window(void* data);
  /// Local. Undoes the registration. Finishing or aborting the communicator does so, too.
  void deregister_memory(void* data);

  /// Returns call(OpaqueComm*), a Result; nothing if the communicator has been finished or aborted.
  /// No thread does that meanwhile.
  template <typename Function>
  std::optional<Result> call(Function&& function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    return std::forward<Function>(function)(comm_);
  }

  /// kInProgress while an operation is starting or another thread is in a call, kSuccess, or an
  /// error, which is final. Nothing if the communicator has been finished or aborted.
  std::optional<Result> poll();

  /// "unhandled cuda error: <what NCCL said last>".
  std::string error_text(Result result);

  /// A clean end, which takes several calls: forgets registered memory, waits for what is in
  /// flight, destroys the communicator, or aborts it after an error. Returns whether it is down.
  bool finish();
  /// Aborts pending operations and destroys the communicator. May take long.
  void abort();

 private:
  struct Registered {
    void* buffer = nullptr;
    OpaqueWindow* window = nullptr;  // written by NCCL, later
  };

  Result poll_locked();
  void deregister_locked(const Registered& registered);
  OpaqueComm* take_split_off();

  const std::shared_ptr<const Api> api_;
  const std::string name_;
  const bool uses_copy_engines_;
  std::mutex mutex_;
  OpaqueComm* comm_ = nullptr;
  bool is_finalized_ = false;
  // The communicator that a split of this one makes. NCCL writes it when the split is done, on a
  // thread of its own and without mutex_: read it with atomic_ref.
  OpaqueComm* split_off_ = nullptr;
  std::map<void*, Registered> registered_;
};

}  // namespace tessera::internal::nccl
