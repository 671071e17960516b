#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/tools/run/ending.h"
#include "tessera/tools/run/line_prefixer.h"
#include "tessera/tools/run/log_file.h"
#include "tessera/tools/run/watcher.h"

namespace tessera::internal {

/// One stream of a worker's output: the pipe that it comes through and the cutter of its lines.
struct WorkerStream {
  FileDescriptor pipe;
  LinePrefixer lines;
  LogFile log;           ///< gets all of it, as it comes
  bool is_shown = true;  ///< whether a sink gets the lines

  /// Appends what the pipe holds now to `out` and the log, at most about `limit_bytes`; never waits
  /// for the worker. Closes the pipe and ends the last line when nobody can write to it any more.
  void read_into(Sink& out, size_t limit_bytes);
};

/// What to start a worker with.
struct WorkerProgram {
  /// Path or name, then arguments.
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};
  /// What messages call the worker: "rank 2"; and what comes before each of its lines.
  std::string name = {};
  std::string prefix = {};
  /// Of stdout and stderr.
  std::array<LogFile, 2> logs = {};
  std::array<bool, 2> is_shown = {true, true};
};

/// One rank's process: leader of a process group of its own, stdin from /dev/null, stdout and
/// stderr into pipes, no signal blocked. The kernel kills it when the launcher's thread ends.
class Worker {
 public:
  /// Starts rank `rank`; returns once the program runs. The group is known to `watcher` before
  /// that. The calling process must have one thread. Errors, naming the program: NotFound if there
  /// is none of that name, PermissionDenied if it cannot be run, ResourceExhausted if the system
  /// has no process or descriptor left.
  static absl::StatusOr<std::unique_ptr<Worker>> start(int rank, WorkerProgram program,
                                                       const Watcher& watcher);

  int rank() const { return rank_; }
  const std::string& name() const { return name_; }
  /// Its process id, which is also the id of its process group.
  pid_t pid() const { return pid_; }
  WorkerStream& out() { return out_; }
  WorkerStream& err() { return err_; }

  /// How the worker ended; nothing while it runs. Its process group may live on.
  const std::optional<Ending>& ending() const { return ending_; }
  /// Called by whoever reaped it.
  void set_ending(Ending ending) { ending_ = ending; }

  /// Whether a process of its group is left, as far as `notice_group_end` has seen.
  bool group_is_alive() const { return group_is_alive_; }
  /// Looks; returns true once, when the worker has been reaped and its group is found empty. The
  /// group's number may be another's soon after, so look often; signals go nowhere from then on.
  bool notice_group_end();
  /// Sends `signal` to every process of its group.
  void signal_group(int signal);

 private:
  Worker(int rank, std::string name, pid_t pid, WorkerStream out, WorkerStream err);

  int rank_;
  std::string name_;
  pid_t pid_;
  WorkerStream out_;
  WorkerStream err_;
  std::optional<Ending> ending_;
  bool group_is_alive_ = true;
};

}  // namespace tessera::internal
