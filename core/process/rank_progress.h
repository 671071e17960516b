#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal {

/// The part of a step that a rank is in, as far as an engine knows it.
enum class Phase : uint32_t { kOther, kForward, kBackward, kStep, kSaving };

/// Returns the phase's name, such as "forward"; "" for kOther and for invalid values.
const char* phase_name(Phase phase);

/// A rank's long wait for other ranks.
struct LongWait {
  int64_t since_ns = 0;    ///< begin, on the host's monotonic clock, which all processes share
  std::string call;        ///< such as "all_reduce SUM float32[4] 'tag' #3 on group 'world'"
  std::string group;       ///< the group's name
  int64_t number = -1;     ///< the call's number in its group; -1: it has none
  std::vector<int> ranks;  ///< the first awaited ranks, at most kRanks, in the job's numbering
  int64_t awaited = 0;     ///< number of awaited ranks; 0: not known
  static constexpr size_t kRanks = 8;
};

/// A rank's speed, measured between the ends of at most its last 15 steps.
struct Pace {
  int64_t last_step_ns = 0;       ///< when the last step ended, on the monotonic clock
  double seconds_per_step = 0.0;  ///< 0: fewer than two steps have ended
  /// The part of seconds_per_step in which the rank did not wait for other ranks; unset if not
  /// known.
  std::optional<double> own_seconds_per_step;
};

/// How far a rank has come and what it is doing. Lies in memory shared between processes; all zeros
/// mean that the rank has written nothing yet. Only the rank writes; writing does not allocate,
/// lock or wait. Any process may read at any time. A read that collides with a write
/// retries only a limited number of times, because a rank that misbehaves may never finish a write.
class RankProgress {
 public:
  // Called by the rank, from any thread. Only one thread at a time may call begin(),
  // note_step_end() and the functions for waits.

  /// Discards the notes of an earlier process of the rank.
  void begin() noexcept;

  /// Notes that the rank is alive: it has begun or finished something, or checked on ranks that it
  /// waits for.
  void note_life() noexcept;
  /// Notes that the rank is in no group. Until its next note, no signs of life are expected.
  void note_rest() noexcept { life_ns_.store(0, std::memory_order_relaxed); }
  void note_phase(Phase phase) noexcept {
    phase_.store(static_cast<uint32_t>(phase), std::memory_order_relaxed);
  }
  /// Notes how many steps the rank has trained.
  void note_step(int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  /// Notes that a step ends now. `waited_ns`: the total time for which its thread has waited for
  /// other ranks; -1 if not known.
  void note_step_end(int64_t waited_ns) noexcept;
  /// Notes that the rank waits in this call. Replaces an earlier wait.
  void note_wait(int64_t since_ns, std::string_view call, std::string_view group, int64_t number,
                 const std::vector<int>& ranks) noexcept;
  void note_wait_end() noexcept;

  // Called by any process.

  /// Returns the time at which the rank last noted that it is alive, in nanoseconds on the
  /// monotonic clock, accurate to some milliseconds; 0 if it never did, or is in no group.
  int64_t life_ns() const { return life_ns_.load(std::memory_order_relaxed); }
  Phase phase() const;
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  Pace pace() const;
  /// Returns the present long wait; nullopt if there is none, or the rank is just writing it.
  std::optional<LongWait> wait() const;

 private:
  static constexpr uint64_t kSteps = 16;
  struct StepEnd {
    std::atomic<int64_t> when_ns;
    std::atomic<int64_t> waited_ns;
  };
  /// A wait in plain bytes, so that a torn copy does no harm.
  struct WaitBytes {
    int64_t since_ns;
    int64_t number;
    int64_t awaited;
    std::array<int32_t, LongWait::kRanks> ranks;
    std::array<char, 64> group;  // the rest is zeros
    std::array<char, 168> call;
  };
  static constexpr size_t kWords = sizeof(WaitBytes) / sizeof(uint64_t);
  static_assert(sizeof(WaitBytes) % sizeof(uint64_t) == 0);

  void write_wait(const std::array<uint64_t, kWords>& words) noexcept;

  alignas(64) std::atomic<int64_t> life_ns_;
  std::atomic<uint32_t> phase_;
  std::atomic<int64_t> step_;
  std::atomic<uint64_t> step_ends_;     // number of steps that have ended
  std::atomic<uint64_t> wait_version_;  // odd while wait_ is being written
  StepEnd ends_[kSteps];
  std::atomic<uint64_t> wait_[kWords];  // a WaitBytes; since_ns is 0 if there is no wait
};

/// Returns nanoseconds on the monotonic clock; coarse_monotonic_ns() is cheaper, but accurate only
/// to some milliseconds.
int64_t monotonic_ns();
int64_t coarse_monotonic_ns() noexcept;

}  // namespace tessera::internal
