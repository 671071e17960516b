#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// A job of this host that this process may look at.
struct FoundJob {
  int launcher = 0;     ///< pid
  std::string program;  ///< the launcher's command line, printable; "" if it is gone
  std::unique_ptr<JobPage> page;
};

/// Local. Returns all jobs whose launchers (tessera-run, or a program that called launch()) this
/// process can see, ordered by pid: this user's jobs, or for root those of all users, in this PID
/// namespace.
std::vector<FoundJob> find_jobs();

/// Local. Returns the job of launcher `pid`. Errors, with the remedy: NotFound (no such process),
/// Unavailable (the launcher has no ranks now or is of another version, or /proc is missing),
/// PermissionDenied, FailedPrecondition (in another PID namespace).
absl::StatusOr<FoundJob> find_job(int pid);

/// Returns "tessera-run: 2 jobs run here ...", with one line per job.
std::string list_jobs(const std::vector<FoundJob>& jobs);

}  // namespace tessera::internal
