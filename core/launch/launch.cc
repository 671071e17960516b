#include "tessera/launch.h"

#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/launch/caught_signals.h"
#include "tessera/core/launch/launched_ranks.h"
#include "tessera/core/process/job_page.h"
#include "tessera/core/process/launched_rank.h"
#include "tessera/core/process/launchers.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/environment.h"
#include "tessera/record_errors.h"
#include "tessera/time_out.h"

namespace tessera {
namespace internal {
namespace {

/// The environment variable in which launch() tells its ranks the pid of the launcher.
constexpr const char* kLauncherPid = "TESSERA_LAUNCHER_PID";

/// Returns true if a launcher, or launch() in another process, has made this process a rank.
bool is_rank() {
  const auto launcher = process_environment(kLauncherPid);
  TORCH_CHECK(!launcher || *launcher == absl::StrCat(::getppid()), "[launch] ", kLauncherPid,
              ": got ", launcher.value_or(""), ", expected ", ::getppid(),
              ", the parent of this process: a rank of launch() has started this program, whose "
              "ranks would be ranks of a rank; call launch() in the first program only");
  if (launcher) return true;
  const auto job = read_own_rank();
  TORCH_CHECK(job.ok(), std::string(job.status().message()));
  const std::string& variable = job->rank_variable;
  return variable == "RANK" || variable == "TESSERA_WORLD" || job->world_size > 1;
}

void check_launch(int argc, char** argv, const LaunchOptions& options) {
  TORCH_CHECK(argc >= 1 && argv != nullptr && argv[0] != nullptr, "[launch] argc, argv: got ", argc,
              " arguments, expected main()'s, of which there is one at least; pass them on");
  TORCH_CHECK(options.nproc >= 1 && options.nproc <= JobPage::kMostRanks, "[launch] nproc: got ",
              options.nproc, ", expected 1 to ", JobPage::kMostRanks, " ranks; correct it");
  TORCH_CHECK(options.grace.count() >= 0, "[launch] grace: got ", options.grace.count(),
              " ms, expected 0 or more; leave it out for 20 seconds");
}

int run_rank(const char* program, const std::function<int()>& fn) {
  static std::atomic<bool> has_run = false;
  TORCH_CHECK(!has_run.exchange(true), "[launch] rank ", process_environment("RANK").value_or("?"),
              ": got a second call of launch(), expected one, as this process is a rank already; "
              "return from main() what the first one returns");
  if (process_environment(kLauncherPid)) LaunchedRank::note_arrival();
  const char* const slash = ::strrchr(program, '/');
  // The name is "exe" so far, because the launcher has executed /proc/self/exe.
  ::prctl(PR_SET_NAME, slash == nullptr ? program : slash + 1);
  return record_errors(fn);
}

}  // namespace
}  // namespace internal

int launch(int argc, char** argv, const LaunchOptions& options, const std::function<int()>& fn) {
  using namespace internal;
  check_launch(argc, argv, options);
  if (is_rank()) return run_rank(argv[0], fn);
  static std::atomic<bool> is_under_way = false;
  TORCH_CHECK(!is_under_way.exchange(true),
              "[launch] got a call while another one waits for its ranks, expected one at a time "
              "in a process; call one after the other");
  const auto over = c10::make_scope_exit([] { is_under_way = false; });
  open_standard_streams();
  std::fflush(stdout);  // text printed before the launch must precede the ranks' output
  const CaughtSignals signals;
  LaunchedRanks ranks(bounded(options.grace));
  ranks.start(options.nproc, {argv, argv + argc}, {absl::StrCat(kLauncherPid, "=", ::getpid())});
  return ranks.wait(signals);
}

}  // namespace tessera
