#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/process/job_page.h"

namespace tessera::internal {

// Reports of this process's progress to its launcher and to `tessera-run --status`. Any thread. No
// effect before report_failures(), or in a child of fork().

/// Reports that something has begun or ended, so the process is not frozen. Takes nanoseconds.
void report_life() noexcept;

/// report_step() reports how many steps this process has trained, including those of a loaded
/// state. report_saved_step() reports which step is in a checkpoint. tessera-run restarts a failed
/// job unless these numbers show that it failed at the same step as before.
void report_step(int64_t step) noexcept;
void report_saved_step(int64_t step) noexcept;
/// Reports that a step has ended on the calling thread, which is the training thread. `sees_waits`:
/// true if that thread waits for other ranks inside its calls, and not on a device.
void report_step_end(bool sees_waits) noexcept;
/// Reports which phase begins now.
void report_phase(Phase phase) noexcept;

/// Reports a phase of the training thread while this object lives; the destructor restores the
/// previous phase. Has no effect if made on another thread.
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

/// The process is in a group while such an object lives. A process in no group need not give signs
/// of life.
class GroupPresence {
 public:
  GroupPresence() noexcept;
  ~GroupPresence();
  GroupPresence(const GroupPresence&) = delete;
  GroupPresence& operator=(const GroupPresence&) = delete;
};

/// Reports that the calling thread waits for other ranks, until this object is destroyed. The wait
/// counts as waiting time (Pace), and is noted once it is long. Reads the clock when the wait
/// begins and when it ends. Costs nothing if the wait never begins or there is no launcher.
class WaitReport {
 public:
  using Clock = std::chrono::steady_clock;
  /// A wait that is longer than this is noted, and noted again after each further interval of this
  /// length.
  static constexpr auto kLong = std::chrono::milliseconds(100);

  WaitReport() noexcept;
  ~WaitReport();
  WaitReport(const WaitReport&) = delete;
  WaitReport& operator=(const WaitReport&) = delete;

  /// Returns true if there is a launcher.
  bool is_heard() const { return page_ != nullptr; }
  /// Begins the wait. Call it after a first check has found that the rank must wait.
  void begin() noexcept {
    if (page_ != nullptr && begin_ == Clock::time_point()) begin_ = Clock::now();
  }
  /// Returns true if the thread must call note() now. Also reports a sign of life.
  bool is_due(Clock::time_point now) noexcept;
  /// Notes the call that waits, and the ranks of the world for which it waits. If several threads
  /// wait, only one of them is shown. Once the training thread has ended a step, only that thread
  /// is shown.
  void note(std::string_view call, std::string_view group, int64_t number,
            const std::vector<int>& ranks) noexcept;

 private:
  JobPage* const page_;
  Clock::time_point begin_ = {};
  Clock::time_point next_note_ = {};
  bool is_noted_ = false;
};

}  // namespace tessera::internal
