#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/shm/segment.h"

namespace tessera::internal::shm {

// The types in this file live in memory that several processes map, so they hold no pointers and
// work at any address. Words shared by processes are lock-free atomics; a futex word has 32 bits.
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Blocks until `word` differs from `value`, futex_wake_all() is called, or `limit` has passed.
/// `limit` must be below a second. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);

/// A futex on which all waiting threads of one rank sleep. A sleeper counts itself, reads `rings`,
/// looks for work once more and sleeps until `rings` has changed. A peer first publishes its work,
/// then calls ring(). Both sides use sequentially consistent operations, so the sleeper sees the
/// work or the peer sees the sleeper.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;

  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    rings.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(rings);
  }
};

/// Tells the core that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Note [Poison]
/// ~~~~~~~~~~~~~
/// A group that failed stays failed, on every rank and with the same cause: the first rank that
/// notices a failure writes its text here, and every later failure or call on any rank throws that
/// text. There is one Poison per group (for differing calls, time-outs, a rank that left) and one
/// per world (for a dead process, abort(), an unwinding exception, a time-out for a rank that is in
/// a call of another group). Calls check both before they begin and while they are under way.
class Poison {
 public:
  /// Sets the cause, unless a cause is set already. Returns true if this call has set it.
  /// Wait-free, because a rank may die inside this function; the poison is then set, but without
  /// text. `detail`: for a group, Failure::calls; for a world, the rank that fails the world, or
  /// kNobody.
  bool set(std::string_view cause, int64_t detail) noexcept;
  static constexpr int64_t kNobody = -1;
  bool is_set() const { return state_.load(std::memory_order_acquire) != kClean; }
  /// Returns the first cause; "" while there is none.
  std::string cause() const;
  int64_t detail() const { return detail_; }

 private:
  enum State : uint32_t { kClean, kWriting, kSet };
  static constexpr size_t kTextBytes = 2000;

  std::atomic<uint32_t> state_{kClean};
  uint32_t length_ = 0;
  int64_t detail_ = 0;
  char text_[kTextBytes];
};

/// A call that a rank has announced, and where its data lies. The text of the tag comes last in
/// memory. So peers need only the first two cache lines if the tag is short, as most tags are.
struct alignas(64) PostedCall {
  SharedRange source;
  /// True if `source` is a staging area, through which the data passes in chunks. For a window:
  /// true if its memory is private, so that peers cannot map it.
  bool is_private = false;
  CallRecord record;
};
static_assert(std::is_trivially_copyable_v<PostedCall>);

/// One rank's part of a Channel.
struct alignas(64) ChannelSlot {
  /// The maximum number of calls that a rank has posted and that some rank has not done yet.
  static constexpr int64_t kCalls = 32;

  std::atomic<uint32_t> left;  // 1 once the rank has left the group
  int32_t world_rank;
  alignas(64) std::atomic<int64_t> posted;  // how many calls this rank has posted
  // How many calls, counted from the first, this rank has done. The rank no longer uses the data of
  // these calls.
  std::atomic<int64_t> done;
  // How many steps this rank has ended in calls that move data in parts (ChunkedTransfer). Each
  // part has two steps, except a call's last part, which has none.
  std::atomic<int64_t> steps;
  // How many collectives are over for this rank, counted from the first (Link::note_over()). This
  // counter has its own cache line, because peers poll the line above and rarely read this one.
  alignas(64) std::atomic<int64_t> collectives;
  // A ring: call number s is at s % kCalls. A rank posts call s once all ranks have done call s -
  // kCalls.
  alignas(64) PostedCall calls[kCalls];

  PostedCall& call(int64_t sequence) { return calls[sequence % kCalls]; }
  // See Note [Messages].
  alignas(64) std::atomic<uint32_t> has_outbox;  // 1 once `outbox` is set
  SharedRange outbox;
};

/// The shared state of a process group. `size` slots follow it in memory. Counters only grow. If
/// ranks wait until all counters have reached a value, the last rank to reach it rings all bells.
struct alignas(64) Channel {
  const int32_t size;
  Poison poison;

  /// Requires zeroed memory of bytes(size).
  explicit Channel(int size) : size(size) {
    for (int rank = 0; rank < size; ++rank) new (&slot(rank)) ChannelSlot();
  }

  ChannelSlot& slot(int rank) { return reinterpret_cast<ChannelSlot*>(this + 1)[rank]; }
  static int64_t bytes(int size) {
    return static_cast<int64_t>(sizeof(Channel) + size * sizeof(ChannelSlot));
  }
};

}  // namespace tessera::internal::shm
