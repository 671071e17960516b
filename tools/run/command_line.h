#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::internal {

/// What `tessera-run` was asked to do.
struct CommandLine {
  /// Print `help_text()` and do nothing else; the other members are then without meaning.
  bool help = false;
  /// The same for the version.
  bool version = false;
  /// Print what a job does that runs already, and start none: that of the launcher with this pid,
  /// or the only one there is; as JSON.
  bool status = false;
  std::optional<int> status_job = std::nullopt;
  bool json = false;
  /// Ranks to start on this host, 1 to `kMaxWorkers`.
  int worker_count = 1;
  /// Time between SIGTERM and SIGKILL when the job is ended early, in milliseconds.
  int64_t grace_ms = 20000;
  /// How often the job may start again after a failure, and the first pause before that.
  int max_restarts = 0;
  int64_t backoff_ms = 1000;
  /// How long a rank may begin and finish nothing before it counts as dead; 0: for ever.
  int64_t heartbeat_ms = 0;
  /// Whether the program is a command that starts ranks itself.
  bool supervise = false;
  /// The folder for files of each attempt and rank, absolute; "" for none.
  std::string log_dir = {};
  /// What of each rank goes into files there, 0 to 3: bits of 1 (stdout) and 2 (stderr), alone or
  /// besides the terminal. One entry for each worker.
  std::vector<int> redirects = {};
  std::vector<int> tees = {};
  /// The program (a path, or a name to find in PATH) and its arguments, untouched.
  std::vector<std::string> program;
};

/// Largest value of `--nproc-per-node`.
inline constexpr int kMaxWorkers = 4096;

/// Reads the arguments after `argv[0]`. Flags end at the first argument that is not one, or after
/// `--`; everything from there on is the program. A flag that is not there is read from `inherited`
/// ("NAME=value" strings), PET_MAX_RESTARTS for --max-restarts, unless the program starts ranks
/// itself: it may be torchrun. With --status, what is no flag is the job, and flags may follow it.
/// `core_count` is what `--nproc-per-node auto` means. Local, no side
/// effect. Errors: InvalidArgument listing all problems, one per line.
absl::StatusOr<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                               int core_count,
                                               const std::vector<std::string>& inherited = {});

/// The text of `--help`, made from the same table that the parser reads.
std::string help_text();

}  // namespace tessera::internal
