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
/// for errors and destroys or aborts the communicator, after which calls do nothing. The owner must
/// do that; the destructor does not, because both may take long.
class Communicator {
 public:
  /// What runs its all-gathers in windows.
  enum class Engine : uint8_t { kKernels, kCopies };

  /// `name` is what NCCL's own logs call it.
  Communicator(std::shared_ptr<const Api> api, std::string name, Engine engine = Engine::kKernels);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  const Api& api() const { return *api_; }

  /// Begins to connect to the other ranks that have the same id.
  Result init(int size, int rank, const UniqueId& id);

  /// Collective over this communicator's ranks; nothing may be in flight on it. Begins to make
  /// `child` of the ranks with the same colour, ordered by key; a rank with kNoColor leaves it
  /// empty. `child` must stay alive until this one's poll() has an answer; when that is kSuccess,
  /// child.complete_split() opens it.
  Result split(int color, int key, Communicator& child);
  void complete_split();

  /// Registers memory from ncclMemAlloc, once. kBuffer is local; kWindow is collective over its
  /// ranks, with equal sizes, and finished when poll() says so.
  enum class Registration : uint8_t { kBuffer, kWindow };
  Result register_memory(void* data, size_t bytes, Registration kind);
  /// Local. Whether NCCL made use of the registration, once poll() says kSuccess.
  bool has_registered(void* data);
  /// Local. Undoes the registration. Destroying or aborting the communicator does so, too.
  void deregister_memory(void* data);

  /// Returns call(OpaqueComm*), a Result; nothing if the communicator has been destroyed or
  /// aborted.
  template <typename Function>
  std::optional<Result> call(Function&& function) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    return std::forward<Function>(function)(comm_);
  }

  /// kInProgress while an operation is starting, kSuccess, or an error, which is final. Nothing if
  /// the communicator has been destroyed or aborted.
  std::optional<Result> poll();
  /// As poll(), but kInProgress while another thread is in a call.
  std::optional<Result> try_poll();

  /// While held, no thread destroys or aborts it.
  std::unique_lock<std::recursive_mutex> hold() {
    return std::unique_lock<std::recursive_mutex>(mutex_);
  }

  bool is_open();
  /// "unhandled cuda error: <what NCCL said last>".
  std::string error_text(Result result);

  /// A clean end in two steps: finalize(), which forgets registered memory, then, when poll() says
  /// kSuccess, destroy().
  Result finalize();
  void destroy();
  /// Aborts pending operations and destroys the communicator. May take long.
  void abort();

 private:
  struct Registered {
    Registration kind;
    void* buffer = nullptr;
    OpaqueWindow* window = nullptr;  // written by NCCL, later
  };

  Result poll_locked();
  void deregister_locked(const Registered& registered);
  OpaqueComm* take_split_off();

  const std::shared_ptr<const Api> api_;
  const std::string name_;
  const Engine engine_;
  std::recursive_mutex mutex_;
  OpaqueComm* comm_ = nullptr;
  // What a split makes of this one. NCCL writes it whenever it is done, on a thread of its own and
  // without mutex_: read it with atomic_ref.
  OpaqueComm* split_off_ = nullptr;
  std::map<void*, Registered> registered_;
};

}  // namespace tessera::internal::nccl
