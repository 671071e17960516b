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

/// The ranks that this process has started by launch(). What tessera-run does, without what it does
/// for a terminal: output goes its own way, and nothing is printed.
class LaunchedRanks {
 public:
  /// Throws std::runtime_error where there is no place for a directory.
  explicit LaunchedRanks(std::chrono::milliseconds grace);
  /// Kills what still runs, and waits for it.
  ~LaunchedRanks();
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  /// Starts `count` ranks of this program, which end when the calling thread does, with this
  /// environment and `variables` ("NAME=value"). Once. Throws std::runtime_error where the system
  /// refuses what they need.
  void start(int count, std::vector<std::string> arguments,
             const std::vector<std::string>& variables);

  /// Blocks until all have ended. Returns what launch() does, and throws what it throws.
  int wait(const CaughtSignals& signals);

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;

  std::string error_file(int rank) const;
  Deadline next_deadline() const;
  void pass_on(const CaughtSignals& signals);
  void reap();
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
  int signal_ = 0;               // the first that told this process to end
  Clock::time_point signalled_;  // when it came
  Deadline kill_at_;             // set once the ranks are being ended
  Deadline give_up_at_;          // set once they have been killed
  bool is_abandoned_ = false;    // not waited for any longer
};

}  // namespace tessera::internal
