#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/launch/caught_signals.h"
#include "tessera/core/launch/failures.h"
#include "tessera/core/launch/rank_process.h"
#include "tessera/core/launch/watcher.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// The ranks that this process has started by launch(). Works like tessera-run, except that output
/// is not redirected and nothing is printed.
class LaunchedRanks {
 public:
  /// Throws std::runtime_error if no directory can be made.
  explicit LaunchedRanks(std::chrono::milliseconds grace);
  /// Kills the ranks that still run, and waits for them.
  ~LaunchedRanks();
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  /// Starts `count` ranks of this program with this process's environment and `variables`
  /// ("NAME=value"). The ranks are killed when the calling thread ends. Call once. Throws
  /// std::runtime_error if the system refuses a resource.
  void start(int count, std::vector<std::string> arguments,
             const std::vector<std::string>& variables);

  /// Blocks until all ranks have ended. Returns and throws what launch() does.
  int wait(const CaughtSignals& signals);

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;

  std::string error_file(int rank) const;
  Deadline next_deadline() const;
  void pass_on(const CaughtSignals& signals);
  void reap();
  bool is_missing(const RankProcess& rank) const;
  void name_first_failure();
  void check_deadlines();
  void end_by(int signal);
  void signal_groups(int signal);
  int64_t count_running() const;

  const std::chrono::milliseconds grace_;
  const std::string directory_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<JobPage> page_;
  std::unique_ptr<Failures> failures_;
  std::vector<RankProcess> ranks_;
  int signal_ = 0;               // the first signal that told this process to end
  Clock::time_point signalled_;  // when signal_ came
  Deadline kill_at_;             // when to kill; set while the ranks are being ended
  Deadline give_up_at_;          // when to stop waiting; set once the ranks have been killed
  bool is_abandoned_ = false;    // the remaining ranks are no longer waited for
};

}  // namespace tessera::internal
