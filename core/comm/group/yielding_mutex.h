#pragma once

#include <sched.h>

#include <atomic>

namespace tessera::internal {

/// A mutex whose lock() yields the core until it has the lock. Unlike with std::mutex, the thread
/// that holds the lock may call try_lock(), which then returns false. A child of fork() that
/// inherits a held lock may call it, too.
class YieldingMutex {
 public:
  void lock() {
    while (!try_lock()) ::sched_yield();
  }
  bool try_lock() { return !is_held_.exchange(true, std::memory_order_acquire); }
  void unlock() { is_held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_held_{false};
};

}  // namespace tessera::internal
