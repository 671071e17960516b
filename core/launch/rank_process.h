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

/// What to start a rank with.
struct RankProgram {
  /// Path or name, then arguments.
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};
  /// What messages call it: "rank 2".
  std::string name = {};
  /// The file to execute where that is not what arguments[0] names; "": that is.
  std::string file = {};
};

/// One rank's process: leader of a process group of its own, stdin from /dev/null, no signal
/// blocked. The kernel kills it when the thread that started it ends.
class RankProcess {
 public:
  /// Starts rank `rank`, which writes to the descriptors `out` and `err` as stdout and stderr;
  /// returns once the program runs. The group is known to `watcher` before that. The calling
  /// process may have other threads. Errors, naming the program: NotFound if there is none of that
  /// name, PermissionDenied if it cannot be run, ResourceExhausted if the system has no process or
  /// descriptor left.
  static absl::StatusOr<RankProcess> start(int rank, const RankProgram& program,
                                           const Watcher& watcher, int out, int err);

  int rank() const { return rank_; }
  const std::string& name() const { return name_; }
  /// Its process id, which is also the id of its process group.
  pid_t pid() const { return pid_; }

  /// How the rank ended; nothing while it runs. Its process group may live on.
  const std::optional<ExitStatus>& exit_status() const { return exit_status_; }
  /// Called by whoever reaped it.
  void set_exit_status(ExitStatus exit_status) { exit_status_ = exit_status; }

  /// Whether a process of its group is left, as far as `notice_group_end` has seen.
  bool group_is_alive() const { return group_is_alive_; }
  /// Looks; returns true once, when the rank has been reaped and its group is found empty. The
  /// group's number may be another's soon after, so look often; signals go nowhere from then on.
  bool notice_group_end();
  /// Sends `signal` to every process of its group.
  void signal_group(int signal);

  /// Looks whether it has ended; if so, kills what is left of its group, reaps it, sets
  /// exit_status() and returns true, once. Does not block. For who leaves nothing of a group behind
  /// its leader: the group's number is nobody else's until the leader is reaped.
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
