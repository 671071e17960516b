#pragma once

#include <string>

#include "tessera/tools/run/job_search.h"
#include "tessera/tools/run/job_status.h"

namespace tessera::internal {

/// Returns what `tessera-run --status` prints: a line about the job, and a line for each rank.
std::string status_table(const FoundJob& job, const JobStatus& status);

/// Returns the same as a JSON object in one line, for programs; docs/launching.md lists its
/// members.
std::string status_json(const FoundJob& job, const JobStatus& status);

}  // namespace tessera::internal
