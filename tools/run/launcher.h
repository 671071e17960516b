#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tessera/core/launch/failures.h"
#include "tessera/core/launch/watcher.h"
#include "tessera/tools/run/signal_inbox.h"
#include "tessera/tools/run/sink.h"
#include "tessera/tools/run/worker.h"

namespace tessera::internal {

/// Exit codes of the launcher's own, as in sysexits.h and the shell.
inline constexpr int kUsageExit = 64;
inline constexpr int kSystemExit = 71;
inline constexpr int kNoStoreExit = 73;
inline constexpr int kCannotRunExit = 126;
inline constexpr int kNotFoundExit = 127;

/// One job: what to start and how many times.
struct Job {
  std::vector<std::string> program;
  /// The launcher's own environment, as "NAME=value" strings.
  std::vector<std::string> inherited;
  int worker_count = 1;
  /// How many cores the job may use, and on which it may run (WorkerPlace).
  int core_count = 1;
  std::vector<int> cores = {};
  int64_t grace_ms = 20000;
};

/// Starts the workers of a job, passes on their output and signals, and ends all of them when one
/// fails. See docs/launching.md for what a user sees of it. One per process; the process has one
/// thread and makes no other children.
class Launcher {
 public:
  explicit Launcher(Job job);

  /// Runs the job to its end and returns the exit code for the process. Blocks. Nothing of the job
  /// is left when it returns, except a process that left its group or that the kernel cannot kill.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;

  int give_up(const absl::Status& status, int exit_code);
  absl::Status start_workers(const std::string& store_directory);
  void loop(SignalInbox& signals);
  void wait_for_events(SignalInbox& signals);
  void take_signals(SignalInbox& signals);
  void take_ending_signal(int signal);
  void reap();
  void record_endings(std::vector<Worker*>& ended);
  void name_first_failure();
  void begin_ending();
  void check_deadlines();
  void forget_empty_groups();
  void read_all_output();

  Failures::Ranks processes() const;
  int count_running() const;
  bool any_group_alive() const;
  void signal_groups(int signal);
  void kill_groups(const std::string& why);
  int poll_timeout_ms();
  void say(const std::string& message);
  using Output = std::pair<WorkerStream*, Sink*>;
  std::array<Output, 2> outputs_of(Worker& worker);
  int exit_code() const;

  Job job_;
  Sink stdout_;
  Sink own_stderr_;
  Sink& stderr_;  // stdout_ where both are one file: so it knows what came last on the terminal
  std::unique_ptr<Watcher> watcher_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Failures> failures_;

  int own_failure_exit_ = 0;     // the launcher could not start a worker
  int ending_signal_ = 0;        // the first signal that told the launcher to end
  Clock::time_point signalled_;  // when it came
  bool term_sent_ = false;       // SIGTERM went to all groups
  bool kill_sent_ = false;       // SIGKILL did
  bool abandoned_ = false;       // stop waiting for whatever is still there
  Deadline linger_until_;        // processes outliving their worker are left alone until then
  Deadline kill_at_;             // the end of the grace
  Deadline give_up_at_;          // a killed process should be gone by then
  Deadline flush_until_;         // the job is over; the terminal may take that long
};

}  // namespace tessera::internal
