#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/launch/watcher.h"

namespace tessera::internal {

/// The program that a rank runs.
struct RankProgram {
  /// The program's path or name, then its arguments.
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};
  /// The name for messages: "rank 2".
  std::string name = {};
  /// The file to execute if it is not the one that arguments[0] names; "" if it is.
  std::string file = {};
};

/// One rank's process: leader of its own process group, with stdin from /dev/null and no signal
/// blocked. If its output goes to a terminal, it ignores SIGTTOU, so that `stty tostop` does not
/// stop it. The kernel kills it when the thread that started it ends.
class RankProcess {
 public:
  /// Starts rank `rank` with the descriptors `out` and `err` as stdout and stderr, and returns once
  /// the program runs. Registers the process group with `watcher` before that. The calling process
  /// may have other threads. Errors, naming the program: NotFound if there is no such program,
  /// PermissionDenied if it cannot be run, ResourceExhausted if the system has no process or
  /// descriptor left.
  static absl::StatusOr<RankProcess> start(int rank, const RankProgram& program,
                                           const Watcher& watcher, int out, int err);

  int rank() const { return rank_; }
  const std::string& name() const { return name_; }
  /// Returns the process id, which is also the id of the process group.
  pid_t pid() const { return pid_; }

  /// Returns how the rank ended; nullopt while it runs. Its process group may outlive it.
  const std::optional<ExitStatus>& exit_status() const { return exit_status_; }
  /// Called by the code that reaped the process.
  void set_exit_status(ExitStatus exit_status) { exit_status_ = exit_status; }

  /// Returns true until notice_group_end() has found the process group empty, or reap_with_group()
  /// has killed it.
  bool group_is_alive() const { return group_is_alive_; }
  /// Checks whether the process group is empty. Returns true once, when the rank has been reaped
  /// and its group is empty; from then on no signals are sent. Call it often, because the group's
  /// number may soon be reused.
  bool notice_group_end();
  /// Sends `signal` to every process of the group.
  void signal_group(int signal);

  /// If the process has ended, kills the rest of its group, reaps it, sets exit_status() and
  /// returns true, once. Does not block. Use it if no process of a group may outlive the leader:
  /// the group's number cannot be reused until the leader is reaped.
  bool reap_with_group();

 private:
  RankProcess(int rank, std::string name, pid_t pid)
      : rank_(rank), name_(std::move(name)), pid_(pid) {}

  int rank_;
  std::string name_;
  pid_t pid_;
  std::optional<ExitStatus> exit_status_;
  bool group_is_alive_ = true;
};

}  // namespace tessera::internal
