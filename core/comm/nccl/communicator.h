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

/// One NCCL communicator of this rank, made with blocking=0: nothing here waits for a peer, and
/// what is begun is over when poll() says so. Thread-safe: one thread issues, another looks for
/// errors and takes it down, after which calls do nothing. Whoever owns it takes it down; the
/// destructor does not, because both ways of doing it may take long.
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

  /// Begins to meet the other ranks that have the same id.
  Result init(int size, int rank, const UniqueId& id);

  /// Collective over this communicator's ranks; nothing may be in flight on it. Begins to make
  /// `child` of the ranks with the same colour, ordered by key; a rank with kNoColor leaves it
  /// empty. `child` must stay alive until this one's poll() has an answer.
  Result split(int color, int key, Communicator& child);

  /// Makes memory from ncclMemAlloc known to it, once. kBuffer is local; kWindow collective over
  /// its ranks, of equal sizes, and over when poll() says so.
  enum class Registration : uint8_t { kBuffer, kWindow };
  Result register_memory(void* data, size_t bytes, Registration kind);
  /// Local. Whether NCCL has a use for what was registered there, when poll() says kSuccess.
  bool has_registered(void* data);
  /// Local. Ends that. Taking the communicator down does so, too.
  void deregister_memory(void* data);

  /// call(OpaqueComm*), which returns a Result, unless it has been taken down: then nothing.
  template <typename Function>
  std::optional<Result> call(Function&& function) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    return std::forward<Function>(function)(comm_);
  }

  /// kInProgress while something is being begun, kSuccess, or an error, which is final. Nothing if
  /// it has been taken down.
  std::optional<Result> poll();
  /// As poll(), but kInProgress while another thread is in a call.
  std::optional<Result> try_poll();

  /// While held, nobody takes it down.
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
  /// Ends whatever runs, and the communicator. May take long.
  void abort();

 private:
  struct Registered {
    Registration kind;
    void* buffer = nullptr;
    OpaqueWindow* window = nullptr;  // written by NCCL, later
  };

  Result poll_locked();
  void deregister_locked(const Registered& registered);

  const std::shared_ptr<const Api> api_;
  const std::string name_;
  const Engine engine_;
  std::recursive_mutex mutex_;
  OpaqueComm* comm_ = nullptr;
  std::map<void*, Registered> registered_;
};

}  // namespace tessera::internal::nccl
