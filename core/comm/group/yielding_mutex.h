#pragma once

#include <sched.h>

#include <atomic>

namespace tessera::internal {

/// For std::lock_guard and std::unique_lock. Gives its core away until it has it. A thread that
/// holds it may try to take it again, in vain; and a child of fork() may find it held.
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
