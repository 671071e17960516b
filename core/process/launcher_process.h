#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// A process and its start time, because a pid may be reused.
struct LauncherProcess {
  int pid = 0;
  uint64_t start_time = 0;  ///< in ticks since boot
};

/// Local. Returns the process of this host that started this rank and the others: the nearest
/// ancestor that was started without this process's value of `variable`. The launcher gives that
/// value to each rank, and processes between them (a shell, numactl) pass it on. Skips ancestors
/// whose environment cannot be read (another user's, or setuid). NotFound if there is no such
/// ancestor.
absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable);

/// Local. Returns a name of the job that srun or mpirun has started, equal in all ranks of the job
/// on this host and different from the name of every other job. The name is made of srun's step
/// ("slurm-17.0") if there is one, else of the launcher's process on this host (find_launcher())
/// and the name that PMIx gives the job. FailedPrecondition if neither is known.
absl::StatusOr<std::string> job_name(const Environment& environment);

}  // namespace tessera::internal
