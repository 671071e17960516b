#include "tessera/core/comm/meeting/job_path.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/launcher_process.h"
#include "tessera/core/process/machine.h"
#include "tessera/core/process/own_directory.h"

namespace tessera::internal {
namespace {

absl::StatusOr<std::string> own_directory() {
  const std::string runtime = process_environment("XDG_RUNTIME_DIR").value_or("");
  const bool is_for_user = absl::StartsWith(runtime, "/") && is_own_directory(runtime);
  const std::string directory =
      is_for_user ? absl::StrCat(runtime, "/tessera") : absl::StrCat("/tmp/tessera-", ::geteuid());
  const bool is_made = ::mkdir(directory.c_str(), 0700) == 0;
  const int error = errno;
  if (is_own_directory(directory)) return directory;
  const std::string reason =
      is_made || error == EEXIST
          ? "which is not a directory of this user's with mode 0700"
          : absl::StrCat("which cannot be made (", std::strerror(error), ")");
  return absl::FailedPreconditionError(
      absl::StrCat("TESSERA_STORE: not set, so that the ranks of this host would meet in ",
                   directory, ", ", reason,
                   "; set TESSERA_STORE on all ranks to file:///directory/name in a directory of "
                   "this user's with mode 0700"));
}

}  // namespace

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

absl::StatusOr<std::string> path_of_job(const Environment& environment) {
  const auto name = job_name(environment);
  if (!name.ok()) return name.status();
  const auto directory = own_directory();
  if (!directory.ok()) return directory.status();
  return absl::StrCat(*directory, "/", *name);
}

}  // namespace tessera::internal
