#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. A name of the job that srun or mpirun has started, the same in all its ranks of this host
/// and in no other job: srun's step ("slurm-17.0"), else the launcher's process of this host, as
/// the kernel says it (find_launcher()), with PMIx's name of the job. FailedPrecondition if that is
/// not known.
absl::StatusOr<std::string> job_name(const Environment& environment);

}  // namespace tessera::internal
