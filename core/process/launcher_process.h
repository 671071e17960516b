#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// A process, and when it began: a pid may be used again.
struct LauncherProcess {
  int pid = 0;
  uint64_t start_time = 0;  ///< in ticks since boot
};

/// Local. Returns the process of this host that started this rank and the others: the nearest
/// ancestor that was started without this process's value of `variable`. The launcher gives that to
/// each rank, and processes between them (a shell, numactl) pass it on. Ancestors that do not show
/// their environment (of another user, setuid) are skipped. NotFound if none is seen.
absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable);

/// Local. Returns a name of the job that srun or mpirun has started, the same in all its ranks of
/// this host and in no other job: srun's step ("slurm-17.0"), else the launcher's process of this
/// host (find_launcher()) with PMIx's name of the job. FailedPrecondition if that is not known.
absl::StatusOr<std::string> job_name(const Environment& environment);

}  // namespace tessera::internal
