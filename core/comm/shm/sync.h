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

// Everything in this file lives in memory that several processes map, so it holds no pointers and
// works at any address. Words shared by processes are lock-free atomics; a futex word is one of 32
// bits.
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Blocks until `word` differs from `value`, a wake-up or `limit`, below a second. May return
/// early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);

/// A futex on which the threads of one rank sleep, whatever they wait for. A sleeper counts itself,
/// reads `rings`, looks once more and sleeps until `rings` has changed. A peer first publishes its
/// work, then calls ring(). Both sides are sequentially consistent, so at least one sees the other.
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
/// text. There is one Poison per group (differing calls, time-outs, a rank that left) and one per
/// world (a dead process, abort(), an unwinding exception, a time-out for a rank that is in a call
/// of another group). Calls check both before they begin and while they are under way.
class Poison {
 public:
  /// Sets the cause, unless one is set; returns true if it did. Wait-free: a rank that dies in here
  /// leaves a poison without text. `detail`: for a group Failure::calls; for a world the rank that
  /// fails it, or kNobody.
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

/// A call that a rank has announced, and where its data lies. The end of the tag comes last,
/// because most calls leave it unused: peers read only the two cache lines before it.
struct alignas(64) PostedCall {
  SharedRange source;
  /// `source` is a staging area that passes the data in chunks. For a window: its memory is
  /// private.
  bool is_private = false;
  CallRecord record;
};
static_assert(std::is_trivially_copyable_v<PostedCall>);

/// One rank's side of a channel.
struct alignas(64) ChannelSlot {
  /// How many calls a rank may have posted that are not done on all ranks.
  static constexpr int64_t kCalls = 32;

  std::atomic<uint32_t> left;  // 1 once the rank has left the group
  int32_t world_rank;
  alignas(64) std::atomic<int64_t> posted;  // calls this rank has posted
  std::atomic<int64_t> done;                // leading calls whose data it reads and writes no more
  std::atomic<int64_t> steps;  // ended steps of calls in chunks: two for each part but the last
  // Calls finished by this rank. Peers look at the line above all the time, and at this one rarely.
  alignas(64) std::atomic<int64_t> collectives;
  // A ring: call number s is at s % kCalls. A rank posts s once all are done with s - kCalls.
  alignas(64) PostedCall calls[kCalls];

  PostedCall& call(int64_t sequence) { return calls[sequence % kCalls]; }
  // See Note [Messages].
  alignas(64) std::atomic<uint32_t> has_outbox;  // 1 once `outbox` is set
  SharedRange outbox;
};

/// The shared side of a process group. `size` slots follow it in memory. Counters only grow; a rank
/// that completes something for all ranks rings their bells.
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
