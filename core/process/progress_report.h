#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/process/job_page.h"

namespace tessera::internal {

// What this process says to its launcher of how far it has come, and to whoever asks that with
// `tessera-run --status`. Any thread. No effect before report_failures(), or in a child of fork().

/// Something has begun or has been finished: the process is not frozen. Some nanoseconds.
void report_life() noexcept;

/// Says how many steps this process has trained, those of a loaded state included, and which step
/// a checkpoint has. tessera-run starts a job again that fails, but not where it fails at the same
/// step as before.
void report_step(int64_t step) noexcept;
void report_saved_step(int64_t step) noexcept;
/// A step has ended; the calling thread is the one that trains. `sees_waits`: whether it waits for
/// other ranks in its calls, and not on a device.
void report_step_end(bool sees_waits) noexcept;
/// What comes now.
void report_phase(Phase phase) noexcept;

/// A phase of the thread that trains, as long as this lives; then it is what it was. No effect in
/// other threads.
class PhaseReport {
 public:
  explicit PhaseReport(Phase phase) noexcept;
  ~PhaseReport();
  PhaseReport(const PhaseReport&) = delete;
  PhaseReport& operator=(const PhaseReport&) = delete;

 private:
  JobPage* page_;  // null: no effect
  Phase before_ = Phase::kOther;
};

/// This process is in a group as long as one of these lives. Without one it may be silent.
class GroupPresence {
 public:
  GroupPresence() noexcept;
  ~GroupPresence();
  GroupPresence(const GroupPresence&) = delete;
  GroupPresence& operator=(const GroupPresence&) = delete;
};

/// A wait of the calling thread for other ranks, until this is destroyed. Counts as time that it
/// waited (Pace), and is noted where it becomes long. Costs a look at the clock at each end, and
/// nothing in a wait that never began or without a launcher.
class WaitReport {
 public:
  using Clock = std::chrono::steady_clock;
  /// From then on it is long, and is noted again so often.
  static constexpr auto kLong = std::chrono::milliseconds(100);

  WaitReport() noexcept;
  ~WaitReport();
  WaitReport(const WaitReport&) = delete;
  WaitReport& operator=(const WaitReport&) = delete;

  /// Returns true if somebody listens.
  bool is_heard() const { return page_ != nullptr; }
  /// A look was in vain.
  void begin() noexcept {
    if (page_ != nullptr && begin_ == Clock::time_point()) begin_ = Clock::now();
  }
  /// Returns true if the thread shall note what it waits for. Says that the process is not frozen.
  bool is_due(Clock::time_point now) noexcept;
  /// In which call, and for which ranks of the world. Of several threads that wait one is shown:
  /// once steps have been trained, the one that trains.
  void note(std::string_view call, std::string_view group, int64_t number,
            const std::vector<int>& ranks) noexcept;

 private:
  JobPage* const page_;
  Clock::time_point begin_ = {};
  Clock::time_point next_note_ = {};
  bool is_noted_ = false;
};

}  // namespace tessera::internal
