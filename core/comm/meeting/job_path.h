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

/// Local. The path at which the ranks of one host meet that srun or mpirun has started and that
/// were given no place: "<directory>/<job>", the same in all of them and in no other job.
/// - The directory belongs to this user, has mode 0700 and is made if need be: tessera in
///   $XDG_RUNTIME_DIR, or /tmp/tessera-<user id> if that is not a directory of this user's alone.
///   FailedPrecondition, with the remedy, if another user has made it first. Who uses it removes
///   what jobs of yesterday left there (remove_dead_sockets()).
/// - The job is job_name().
absl::StatusOr<std::string> path_of_job(const Environment& environment);

}  // namespace tessera::internal
