#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// The parsed command line of `tessera-run`.
struct CommandLine {
  /// Print `help_text()` and do nothing else; the other members are then meaningless.
  bool help = false;
  /// Print the version and do nothing else; the other members are then meaningless.
  bool version = false;
  /// Print the status of a running job instead of starting one: the job of the launcher with this
  /// pid, or the only job there is; optionally as JSON.
  bool status = false;
  std::optional<int> status_job = std::nullopt;
  bool json = false;
  /// Ranks to start on this host, 1 to `kMaxWorkers`.
  int worker_count = 1;
  /// Time between SIGTERM and SIGKILL when the job is ended early, in milliseconds.
  int64_t grace_ms = 20000;
  /// The largest number of restarts after failures, and the pause before the first one.
  int max_restarts = 0;
  int64_t backoff_ms = 1000;
  /// How long a rank may go without beginning or finishing anything before it counts as dead; 0:
  /// for ever.
  int64_t heartbeat_ms = 0;
  /// True if the program is a command that starts ranks itself.
  bool supervise = false;
  /// The folder for files of each attempt and rank, absolute; "" for none.
  std::string log_dir = {};
  /// Which streams of each rank go into files there: `redirects` into files only, `tees` (which has
  /// precedence) also to the terminal. One entry per worker, with bits 1 (stdout) and 2 (stderr).
  std::vector<int> redirects = {};
  std::vector<int> tees = {};
  /// The program (a path, or a name to find in PATH) and its arguments, untouched.
  std::vector<std::string> program;
};

/// Largest value of `--nproc-per-node`.
inline constexpr int kMaxWorkers = JobPage::kMostRanks;

/// Parses the arguments after `argv[0]`. Flags end at the first argument that is not a flag, or
/// after `--`; everything from there on is the program. A missing flag is read from `inherited`
/// ("NAME=value" strings), such as PET_MAX_RESTARTS for --max-restarts. Not with --supervise: then
/// the program may be torchrun, and the variables meant for it. With --status, an argument that is
/// not a flag is the job, and flags may follow it. `core_count` is the value of `--nproc-per-node
/// auto`. Local, no side effects. Errors: InvalidArgument listing all problems, one per line.
absl::StatusOr<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                               int core_count,
                                               const std::vector<std::string>& inherited = {});

/// Returns the text of `--help`, made from the parser's own table of flags.
std::string help_text();

}  // namespace tessera::internal
