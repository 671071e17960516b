#pragma once

#include <string>

#include "tessera/tools/run/job_search.h"
#include "tessera/tools/run/job_status.h"

namespace tessera::internal {

/// What `tessera-run --status` prints of a job: a line about it, and a line for each rank.
std::string status_table(const FoundJob& job, const JobStatus& status);

/// The same as an object in one line, for programs; docs/launching.md has its members.
std::string status_json(const FoundJob& job, const JobStatus& status);

}  // namespace tessera::internal
