#include "tessera/core/comm/shm/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tessera::internal::shm {

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit) {
  const timespec wait{0, limit.count()};
  // Not FUTEX_PRIVATE: the word is shared between processes.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &wait, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Poison::set(std::string_view cause, int64_t detail) noexcept {
  uint32_t expected = kClean;
  if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) return false;
  detail_ = detail;
  length_ = static_cast<uint32_t>(cause.copy(text_, kTextBytes));
  state_.store(kSet, std::memory_order_release);
  return true;
}

std::string Poison::cause() const {
  if (state_.load(std::memory_order_acquire) == kClean) return "";
  // Another thread or process is copying its text, or died while copying it. Wait a second at most
  // for the text.
  for (int i = 0; i < 1000 && state_.load(std::memory_order_acquire) != kSet; ++i) {
    const timespec pause{0, 1000000};
    ::nanosleep(&pause, nullptr);
  }
  if (state_.load(std::memory_order_acquire) != kSet)
    return "a rank died while it reported an error";
  return std::string(text_, length_);
}

}  // namespace tessera::internal::shm
