#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::internal::shm {

/// What a rank has promised its peers and goes on with while any of its threads waits for them: see
/// Note [Posted calls]. Thread-safe. Not to be used in a child of fork().
class Progress {
 public:
  /// A queue of posted calls.
  class Source {
   public:
    virtual ~Source() = default;
    /// Local. Goes on as far as it can without waiting for a peer or for another thread.
    virtual void advance() noexcept = 0;
  };

  void add(Source& source);
  /// Afterwards the source is not used any more.
  void remove(Source& source);

  /// So many more calls (negative: fewer) have been posted and not been taken part in.
  void count(int calls) { pending_.fetch_add(calls, std::memory_order_relaxed); }

  /// Local. Advances all sources; returns at once if another thread is at it.
  void advance() noexcept {
    if (pending_.load(std::memory_order_relaxed) > 0) advance_sources();
  }

  /// Keeps memory that peers may still write to as long as this is there.
  void keep(at::Tensor tensor);

 private:
  void advance_sources() noexcept;

  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::vector<Source*> sources_;
  std::vector<at::Tensor> kept_;
};

}  // namespace tessera::internal::shm
