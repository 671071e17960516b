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

/// Which part of a step a rank is in, as far as an engine knows it.
enum class Phase : uint32_t { kOther, kForward, kBackward, kStep, kSaving };

/// "forward"; "" for kOther, and for what is no phase.
const char* phase_name(Phase phase);

/// A wait of a rank for other ones that has become long.
struct LongWait {
  int64_t since_ns = 0;    ///< on the host's monotonic clock, which all processes share
  std::string call;        ///< "all_reduce SUM float32[4] 'tag' #3 on group 'world'"
  std::string group;       ///< its group's name
  int64_t number = -1;     ///< of the call in its group; -1: it has none
  std::vector<int> ranks;  ///< the first that it waits for, at most kRanks, as the job numbers them
  int64_t awaited = 0;     ///< how many there are; 0: it is not known for whom it waits
  static constexpr size_t kRanks = 8;
};

/// How fast a rank was in its last steps, 15 at most.
struct Pace {
  int64_t last_step_ns = 0;       ///< when the last one ended, on the monotonic clock
  double seconds_per_step = 0.0;  ///< 0: fewer than two steps have ended
  /// The part of this in which it did not wait for other ranks, where that is known.
  std::optional<double> own_seconds_per_step;
};

/// How far a rank has come and what it is doing. Lies in memory shared between processes; all zeros
/// mean that the rank has written nothing yet. Only the rank writes; writing allocates nothing,
/// takes no lock and never waits. Any process may read at any time. Reads are bounded, because a
/// rank that misbehaves may have written anything.
class RankProgress {
 public:
  // Called by the rank, from any thread; begin(), note_step_end() and the waits from one at a time.

  /// Forgets what an earlier process of the rank has noted.
  void begin() noexcept;

  /// The rank is alive: it has begun or finished something, or looked for the ranks it waits for.
  void note_life() noexcept;
  /// The rank is in no group, so it need not show signs of life until it notes something again.
  void note_rest() noexcept { life_ns_.store(0, std::memory_order_relaxed); }
  void note_phase(Phase phase) noexcept {
    phase_.store(static_cast<uint32_t>(phase), std::memory_order_relaxed);
  }
  /// How many steps it has trained.
  void note_step(int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  /// A step ends now. `waited_ns`: how long its thread has waited for other ranks so far; -1 if
  /// that is not known.
  void note_step_end(int64_t waited_ns) noexcept;
  /// The rank waits in this call. Replaces the wait that was noted before.
  void note_wait(int64_t since_ns, std::string_view call, std::string_view group, int64_t number,
                 const std::vector<int>& ranks) noexcept;
  void note_wait_end() noexcept;

  // Called by any process.

  /// Returns when the rank last noted that it is alive, on the monotonic clock, to some
  /// milliseconds; 0: never, or the rank is in no group.
  int64_t life_ns() const { return life_ns_.load(std::memory_order_relaxed); }
  Phase phase() const;
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  Pace pace() const;
  /// Returns the present long wait; nullopt if there is none, or the rank is writing it right now.
  std::optional<LongWait> wait() const;

 private:
  static constexpr uint64_t kSteps = 16;
  struct StepEnd {
    std::atomic<int64_t> when_ns;
    std::atomic<int64_t> waited_ns;
  };
  /// Plain bytes, so that a torn copy does no harm.
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
  std::atomic<uint64_t> step_ends_;     // how many there were
  std::atomic<uint64_t> wait_version_;  // odd while it is being written
  StepEnd ends_[kSteps];
  std::atomic<uint64_t> wait_[kWords];  // a WaitBytes; since_ns 0: none
};

/// Nanoseconds of the monotonic clock; the second to some milliseconds, for less.
int64_t monotonic_ns();
int64_t coarse_monotonic_ns() noexcept;

}  // namespace tessera::internal
