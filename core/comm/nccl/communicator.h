#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {

/// One NCCL communicator of this rank, made with blocking=0: no call waits for a peer, and poll()
/// says when an operation has finished. Thread-safe: one thread may issue operations while another
/// polls for errors and finishes or aborts the communicator. Once finish() has returned kDestroyed,
/// or after abort_together(), calls do nothing. The owner must bring about one of the two; the
/// destructor does not, because both may take long.
class Communicator {
 public:
  /// `name` appears in NCCL's logs. `uses_copy_engines`: all-gathers in windows use copy engines.
  Communicator(std::shared_ptr<const Api> api, std::string name, bool uses_copy_engines = false);

  const std::string& name() const { return name_; }
  const Api& api() const { return *api_; }

  /// Begins to connect to the other ranks that call this with the same id. poll() says when that is
  /// done.
  Result init(int size, int rank, const UniqueId& id);

  /// Collective over this communicator's ranks; nothing may be in flight on it. Begins to make
  /// `child`, the communicator of the ranks with this rank's `color`, which are numbered in the
  /// order of their `key`. On a rank whose color is kNoColor, `child` stays empty. `child` must
  /// stay alive until poll() of this communicator no longer returns kInProgress. When poll()
  /// returns kSuccess, call child.complete_split().
  std::optional<Result> split(int color, int key, Communicator& child);
  void complete_split();

  /// Registers memory from ncclMemAlloc. kBuffer registers it on this rank only. kWindow is
  /// collective over the communicator's ranks, which must pass equal sizes; it is complete when
  /// poll() returns kSuccess.
  enum class Registration : uint8_t { kBuffer, kWindow };
  std::optional<Result> register_memory(void* data, size_t bytes, Registration kind);
  /// Local. Returns true if NCCL has made the window. Valid once poll() has returned kSuccess.
  bool has_window(void* data);
  /// Local. Undoes the registration. Finishing or aborting the communicator does so, too; waits
  /// while another thread aborts it, so that the memory may be freed afterwards.
  void deregister_memory(void* data);

  /// Returns the Result of function(OpaqueComm*), or nullopt if the communicator has been finished
  /// or aborted. No thread can finish or abort it while `function` runs.
  template <typename Function>
  std::optional<Result> call(Function&& function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    return std::forward<Function>(function)(comm_);
  }

  /// Returns kInProgress while an operation is starting or another thread is in a call, otherwise
  /// kSuccess or an error, which is final. Returns nullopt if the communicator has been finished or
  /// aborted.
  std::optional<Result> poll();

  /// Returns the text of `result` and NCCL's last error, such as "unhandled cuda error: <last
  /// error>".
  std::string error_text(Result result);

  /// kNotYet: call finish() again later. kDestroyed: the communicator is gone. kFailed: NCCL
  /// reports an error, so the communicator must be aborted.
  enum class End : uint8_t { kNotYet, kDestroyed, kFailed };
  /// Ends the communicator cleanly: deregisters its memory, and destroys it once nothing is in
  /// flight on it. Does not wait for that.
  End finish();

  /// Local. Aborts pending operations of all `communicators` and destroys them; if a split is under
  /// way, its child comes after its parent. All are aborted in one group of NCCL calls: alone, an
  /// abort may wait for all work on the device, even for a collective of another communicator that
  /// hangs until it is aborted, too. Meanwhile calls do nothing and do not wait, except
  /// deregister_memory(). May take long.
  static void abort_together(const std::vector<std::shared_ptr<Communicator>>& communicators);

 private:
  struct Registered {
    void* buffer = nullptr;
    OpaqueWindow* window = nullptr;  // NCCL writes this after the call has returned
  };

  Result poll_locked();
  void deregister_locked(const Registered& registered);
  OpaqueComm* take_split_off();
  OpaqueComm* take();

  const std::shared_ptr<const Api> api_;
  const std::string name_;
  const bool uses_copy_engines_;
  std::mutex ending_;  // held during an abort; locked before mutex_
  std::mutex mutex_;
  OpaqueComm* comm_ = nullptr;
  bool is_finalized_ = false;
  // If this object is the `child` of a split: the communicator that the split has made, until
  // complete_split() moves it to comm_. When the split is done, NCCL writes this pointer on a
  // thread of its own and without mutex_, so read it with atomic_ref.
  OpaqueComm* split_off_ = nullptr;
  std::map<void*, Registered> registered_;
};

}  // namespace tessera::internal::nccl
