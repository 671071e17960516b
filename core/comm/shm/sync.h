#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/collective.h"
#include "tessera/core/comm/groups/call_tag.h"
#include "tessera/core/comm/shm/segment.h"

namespace tessera::internal::shm {

// Everything in this file lives in memory that several processes map, so it holds no pointers and
// works at any address. Words shared by processes are lock-free atomics; a futex word is one of 32
// bits.
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Blocks until `word` differs from `value`, someone wakes it, or `limit` has passed; may return
/// early. Returns whether the limit passed.
bool futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);

/// What the threads of one rank sleep on, whatever they wait for. A sleeper counts itself, reads
/// `rings`, looks once more and sleeps until `rings` has changed; who makes something come true
/// publishes it and calls ring(). Both sides are sequentially consistent, so one sees the other.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;

  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    rings.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(rings);
  }
};

/// Tells the core that this is a loop of waiting.
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
/// of another group). Waits check both periodically; calls check both before they begin.
class Poison {
 public:
  /// Sets the cause unless there is one. Wait-free: a rank that dies in here leaves a poison
  /// without text.
  void set(std::string_view cause) noexcept;
  bool is_set() const { return state_.load(std::memory_order_acquire) != kClean; }
  /// The first cause; "" while there is none.
  std::string cause() const;

 private:
  enum State : uint32_t { kClean, kWriting, kSet };
  static constexpr size_t kTextBytes = 2000;

  std::atomic<uint32_t> state_{kClean};
  uint32_t length_ = 0;
  char text_[kTextBytes];
};

/// What a rank calls: the fingerprint that is compared across ranks, and where its data lies.
struct CallDescriptor {
  int64_t sequence = 0;
  CallSignature signature;
  bool staged = false;  // `source` is a staging area through which the data passes in chunks
  bool meets = true;    // this rank waits for the others at phases; false: Note [Posted calls]
  int32_t slice = -1;   // which slice this rank receives of a reduce_scatter; may differ
  CallTag<100> tag;
  SharedRange source;
};

/// Whether two ranks call the same collective. Where the data lies may differ.
bool same_call(const CallDescriptor& a, const CallDescriptor& b);

/// "all_reduce SUM float32[1024] 'bucket 3'".
std::string describe(const CallDescriptor& call);

/// One rank's side of a channel.
struct alignas(64) ChannelSlot {
  /// How many calls a rank may have posted that are not done everywhere.
  static constexpr int64_t kCalls = 32;

  std::atomic<uint32_t> arrivals;     // phases this rank has entered
  std::atomic<uint32_t> left;         // 1 once the rank's group is destroyed
  std::atomic<uint64_t> collectives;  // finished by this rank
  int32_t world_rank;
  int32_t number;                           // what messages call it, in the world
  alignas(64) std::atomic<int64_t> posted;  // calls this rank has posted
  std::atomic<int64_t> done;                // leading calls of which it reads and writes no more
  // A ring: call number s is at s % kCalls. A rank posts s when all are done with s - kCalls.
  alignas(64) CallDescriptor calls[kCalls];

  CallDescriptor& call(int64_t sequence) { return calls[sequence % kCalls]; }
  // See Note [Messages]. `mail` changes when something has come for this rank: a message, or word
  // that one of its own was taken.
  alignas(64) std::atomic<uint32_t> mail;
  std::atomic<uint32_t> mail_sleepers;
  std::atomic<uint32_t> has_outbox;  // 1 once `outbox` says where this rank's messages begin
  SharedRange outbox;
};

/// The shared side of a process group. `size` slots follow it in memory.
///
/// Note [Collective order]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// Each collective begins with a descriptor that every rank posts in its ring of calls. When all
/// ranks have posted call s, and not before, any of them compares the calls: all compare the same,
/// and throw the same text if they differ, before any data is touched. Then each does its part.
/// Most collectives wait for that in phases: in each, a rank does its part, then adds one to
/// `arrivals` and waits until all ranks have done so. No rank enters phase k+1 before all have
/// entered phase k, so one counter that reaches size * k after phase k serves all phases. The
/// slots' own counters show which rank is missing. See also Note [Posted calls].
struct alignas(64) Channel {
  alignas(64) std::atomic<uint32_t> arrivals;
  alignas(64) int32_t size;
  std::atomic<uint32_t> reported;  // the last phase of which a rank has said that it waits long
  Poison poison;

  ChannelSlot& slot(int rank) { return reinterpret_cast<ChannelSlot*>(this + 1)[rank]; }
  static int64_t bytes(int size) {
    return static_cast<int64_t>(sizeof(Channel) + size * sizeof(ChannelSlot));
  }
  /// "rank 1", or "rank 3 of the world" where its number there is another one.
  std::string name_of(int rank);
  /// Makes a channel in zeroed memory of bytes(size).
  static Channel* create(void* memory, int size);
};

}  // namespace tessera::internal::shm
