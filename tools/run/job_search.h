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

/// Local. All jobs whose launchers (tessera-run, or a program that called launch()) this process
/// can see: those of this user, or of all users for root, in this PID namespace. By pid.
std::vector<FoundJob> find_jobs();

/// Local. The job of launcher `pid`. Errors say what to do: NotFound (no such process), Unavailable
/// (it has no ranks now, is of another version, or /proc is missing), PermissionDenied,
/// FailedPrecondition (in another PID namespace).
absl::StatusOr<FoundJob> find_job(int pid);

/// "tessera-run: 2 jobs run here ...", a line for each.
std::string list_jobs(const std::vector<FoundJob>& jobs);

}  // namespace tessera::internal
