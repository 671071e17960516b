#include "tessera/core/comm/meeting/job_name.h"

#include <xxhash.h>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/launcher_process.h"
#include "tessera/core/process/machine.h"

namespace tessera::internal {

absl::StatusOr<std::string> job_name(const Environment& environment) {
  if (absl::StartsWith(environment.job_id, "slurm-")) return environment.job_id;
  const auto launcher = find_launcher(environment.rank_variable);
  if (!launcher.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "TESSERA_STORE: not set, and which ", environment.launcher,
        " started this process is not known (", std::string(launcher.status().message()),
        "); set TESSERA_STORE on all ranks to file:///directory/name in a directory of this user's "
        "with mode 0700"));
  }
  // Containers may share the directory, but not the processes.
  const std::string where = absl::StrCat(machine_id(), "/", environment.job_id);
  return absl::StrCat("mpi-", launcher->pid, "-", launcher->start_time, "-",
                      absl::Hex(XXH3_64bits(where.data(), where.size())));
}

}  // namespace tessera::internal
