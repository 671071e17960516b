#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/process/job_page.h"

namespace tessera::internal {

// This process reports its progress to its launcher, and to `tessera-run --status`. Any thread. No
// effect before report_failures(), or in a child of fork().

/// Reports that something has begun or ended, so the process is not frozen. Some nanoseconds.
void report_life() noexcept;

/// Says how many steps this process has trained, including those of a loaded state, and which step
/// a checkpoint has. tessera-run restarts a failed job, unless it fails at the same step as before.
void report_step(int64_t step) noexcept;
void report_saved_step(int64_t step) noexcept;
/// A step has ended; the calling thread is the one that trains. `sees_waits`: whether it waits for
/// other ranks in its calls, and not on a device.
void report_step_end(bool sees_waits) noexcept;
/// Says which phase begins now.
void report_phase(Phase phase) noexcept;

/// Reports a phase of the training thread while this lives; the destructor restores the phase
/// before. No effect in other threads.
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

/// The process is in a group while one of these lives. A process in no group need not report life.
class GroupPresence {
 public:
  GroupPresence() noexcept;
  ~GroupPresence();
  GroupPresence(const GroupPresence&) = delete;
  GroupPresence& operator=(const GroupPresence&) = delete;
};

/// A wait of the calling thread for other ranks, until this is destroyed. Counts as waiting time
/// (Pace), and is noted once it is long. Reads the clock at each end; costs nothing if the wait
/// never began or there is no launcher.
class WaitReport {
 public:
  using Clock = std::chrono::steady_clock;
  /// A wait that lasts longer is long, and is noted again at this interval.
  static constexpr auto kLong = std::chrono::milliseconds(100);

  WaitReport() noexcept;
  ~WaitReport();
  WaitReport(const WaitReport&) = delete;
  WaitReport& operator=(const WaitReport&) = delete;

  /// Returns true if there is a launcher.
  bool is_heard() const { return page_ != nullptr; }
  /// Begins the wait, after a first look found that the rank must wait.
  void begin() noexcept {
    if (page_ != nullptr && begin_ == Clock::time_point()) begin_ = Clock::now();
  }
  /// Returns true if the thread must call note() now. Also reports life.
  bool is_due(Clock::time_point now) noexcept;
  /// Notes the call that waits, and the ranks of the world that it waits for. Only one waiting
  /// thread is shown: the training thread, once it has ended a step.
  void note(std::string_view call, std::string_view group, int64_t number,
            const std::vector<int>& ranks) noexcept;

 private:
  JobPage* const page_;
  Clock::time_point begin_ = {};
  Clock::time_point next_note_ = {};
  bool is_noted_ = false;
};

}  // namespace tessera::internal
