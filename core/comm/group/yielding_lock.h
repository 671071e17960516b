#pragma once

#include <sched.h>

#include <atomic>
#include <mutex>

namespace tessera::internal {

/// Holds a word while alive. No mutex, as a child of fork() may find it held. Not taken twice by a
/// thread.
class YieldingLock {
 public:
  /// Gives its core away until it has it.
  explicit YieldingLock(std::atomic<bool>& word) : YieldingLock(word, std::try_to_lock) {
    while (!owned_) {
      ::sched_yield();
      owned_ = !word_.exchange(true, std::memory_order_acquire);
    }
  }
  YieldingLock(std::atomic<bool>& word, std::try_to_lock_t)
      : word_(word), owned_(!word.exchange(true, std::memory_order_acquire)) {}
  ~YieldingLock() {
    if (owned_) word_.store(false, std::memory_order_release);
  }
  YieldingLock(const YieldingLock&) = delete;
  YieldingLock& operator=(const YieldingLock&) = delete;
  bool owned() const { return owned_; }

 private:
  std::atomic<bool>& word_;
  bool owned_;
};

}  // namespace tessera::internal
