#include "tessera/tools/run/status_command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tessera/core/process/process_status.h"
#include "tessera/core/process/rank_progress.h"
#include "tessera/tools/run/attempt.h"
#include "tessera/tools/run/job_search.h"
#include "tessera/tools/run/job_status.h"
#include "tessera/tools/run/status_table.h"

namespace tessera::internal {
namespace {

constexpr unsigned kRefresh_s = 1;

int fail(const std::string& text, int exit_code) {
  fprintf(stderr, "tessera-run: %s\n", text.c_str());
  return exit_code;
}

int print(const std::string& text) {
  if (fputs(text.c_str(), stdout) >= 0 && fflush(stdout) == 0) return 0;
  return fail(absl::StrCat("cannot write to stdout: ", strerror(errno)), kSystemExit);
}

std::string table_of(const FoundJob& job) {
  return status_table(job, read_status(*job.page, monotonic_ns()));
}

/// Returns `text` to be printed from the top left corner; each line clears the one it replaces.
std::string on_screen(const std::string& text) {
  return absl::StrCat("\033[H", absl::StrReplaceAll(text, {{"\n", "\033[K\n"}}), "\033[J");
}

/// Prints the status again and again until the launcher has ended. Looks for the page each time,
/// because the launcher makes a new page for each attempt.
int watch(const FoundJob& first) {
  const int pid = first.launcher;
  const auto begun = process_status(pid);
  int code = print("\033[2J");
  while (code == 0) {
    const absl::StatusOr<FoundJob> job = find_job(pid);
    const auto launcher = process_status(pid);
    const bool is_there =
        launcher && !launcher->has_ended() && begun && launcher->start_time == begun->start_time;
    if (!is_there) return print(absl::StrCat("\njob ", pid, " has ended\n"));
    code = print(
        on_screen(job.ok() ? table_of(*job) : absl::StrCat("job ", pid, " has no ranks now\n")));
    sleep(kRefresh_s);
  }
  return code;
}

}  // namespace

int print_status(const std::optional<int>& job, bool json) {
  absl::StatusOr<FoundJob> found = absl::NotFoundError("");
  if (job) {
    found = find_job(*job);
    if (!found.ok()) return fail(std::string(found.status().message()), kNoJobExit);
  } else {
    std::vector<FoundJob> jobs = find_jobs();
    if (jobs.size() > 1) return fail(list_jobs(jobs), kUsageExit);
    if (jobs.empty()) {
      return fail(
          "no job runs here that tessera-run or launch() has started and that this user may look "
          "at; one in a container is seen in there only, one of another user by that user or root",
          kNoJobExit);
    }
    found = std::move(jobs.front());
  }
  if (json) return print(status_json(*found, read_status(*found->page, monotonic_ns())));
  if (isatty(STDOUT_FILENO) != 0) return watch(*found);
  return print(table_of(*found));
}

}  // namespace tessera::internal
