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
#include "tessera/core/launch/worker_environment.h"
#include "tessera/core/process/job_page.h"
#include "tessera/tools/run/command_line.h"
#include "tessera/tools/run/console.h"
#include "tessera/tools/run/heartbeats.h"
#include "tessera/tools/run/restart_policy.h"
#include "tessera/tools/run/signal_inbox.h"
#include "tessera/tools/run/sink.h"
#include "tessera/tools/run/worker.h"

namespace tessera::internal {

/// The launcher's own exit codes, as in sysexits.h and the shell.
inline constexpr int kUsageExit = 64;
inline constexpr int kSystemExit = 71;
inline constexpr int kNoStoreExit = 73;
inline constexpr int kCannotRunExit = 126;
inline constexpr int kNotFoundExit = 127;

/// A job: the program to start, and its surroundings.
struct Job {
  CommandLine line;
  /// The launcher's own environment, as "NAME=value" strings.
  std::vector<std::string> inherited;
  /// Number of cores that the job may use, and the cores on which it may run (WorkerPlace).
  int core_count = 1;
  std::vector<int> cores = {};
  /// TORCHELASTIC_RUN_ID: the same for all attempts.
  std::string run_id = {};
};

/// One start of a job's workers, with a directory, page and watcher of its own. Passes on their
/// output and signals, and ends all workers when one fails.
class Attempt {
 public:
  /// Makes attempt `number`, from 0. References must outlive it.
  Attempt(const Job& job, int number, Console& console, SignalInbox& signals);

  /// Runs the attempt to its end; call once. Blocks. When it returns, nothing of the attempt is
  /// left except output that the console has not written, and processes that left their group or
  /// that the kernel cannot kill.
  AttemptEnd run();

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;

  absl::Status start_workers(const std::string& store_directory);
  absl::StatusOr<WorkerProgram> program_of(WorkerPlace& place, const std::string& store_directory);
  absl::Status open_logs(int rank, const std::string& folder, WorkerProgram& program);
  void loop();
  void wait_for_events();
  void take_signals();
  void take_ending_signal(int signal);
  void reap();
  void record_endings(std::vector<Worker*>& ended);
  void name_first_failure();
  void end_frozen();
  void begin_ending();
  void check_deadlines();
  void forget_empty_groups();
  void read(WorkerStream& stream, Sink& sink, size_t limit_bytes);
  void read_all_output();

  Failures::Ranks processes() const;
  int count_running() const;
  bool any_group_alive() const;
  void signal_groups(int signal);
  void kill_groups(const std::string& why);
  int poll_timeout_ms();
  void say(const std::string& message) { console_.say(message); }
  using Output = std::pair<WorkerStream*, Sink*>;
  std::array<Output, 2> outputs_of(Worker& worker);
  AttemptEnd end();

  const Job& job_;
  const int number_;
  Console& console_;
  SignalInbox& signals_;
  std::vector<std::string> error_files_;  // one per rank; empty if the program is a command
  std::unique_ptr<Watcher> watcher_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<JobPage> page_;
  std::unique_ptr<Failures> failures_;
  std::optional<Heartbeats> heartbeats_;  // unset without a time-out

  bool lacks_logs_ = false;      // a restart goes on without some of its log files
  int own_failure_exit_ = 0;     // exit code if the launcher could not start the workers
  int ending_signal_ = 0;        // the first signal that told the launcher to end
  Clock::time_point signalled_;  // when ending_signal_ came
  bool term_sent_ = false;       // SIGTERM went to all groups
  bool kill_sent_ = false;       // SIGKILL went to all groups
  bool abandoned_ = false;       // the remaining processes are no longer waited for
  Deadline linger_until_;        // until then, processes that outlive their worker are left alone
  Deadline kill_at_;             // the end of the grace period
  Deadline give_up_at_;          // when killed processes should be gone
};

}  // namespace tessera::internal
