#include "tessera/core/process/launcher_process.h"

#include <unistd.h>
#include <xxhash.h>

#include <fstream>
#include <optional>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

/// An environment variable of another process, as it was when that process was started.
struct StartVariable {
  // False if the process is another user's, setuid or gone, or /proc is hidden.
  bool is_shown = false;
  std::optional<std::string> value;
};

StartVariable variable_of_process(int pid, const std::string& name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  StartVariable found{.is_shown = file.is_open(), .value = {}};
  std::string entry;
  while (!found.value && std::getline(file, entry, '\0')) {  // the first entry, like getenv
    if (absl::StartsWith(entry, name + "=")) found.value = entry.substr(name.size() + 1);
  }
  if (file.bad()) found.is_shown = false;
  return found;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable) {
  const auto own = process_environment(variable.c_str());
  auto status = process_status(::getpid());
  while (status && status->parent > 0) {
    const int ancestor = status->parent;
    status = process_status(ancestor);
    if (!status) break;
    const StartVariable its = variable_of_process(ancestor, variable);
    const bool may_be_between = !its.is_shown || (own && its.value == own);
    if (!may_be_between) return LauncherProcess{ancestor, status->start_time};
  }
  return absl::NotFoundError(absl::StrCat("no process that started process ", ::getpid(),
                                          " and has not its ", variable, " is to be seen"));
}

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
  // The job's name becomes part of the name of an abstract socket, so it must differ from the names
  // of all other jobs in this network namespace. A pid alone would not do: containers may share a
  // network namespace and have PID namespaces of their own.
  const std::string where = absl::StrCat(machine_id(), "/", environment.job_id);
  return absl::StrCat("mpi-", launcher->pid, "-", launcher->start_time, "-",
                      absl::Hex(XXH3_64bits(where.data(), where.size())));
}

}  // namespace tessera::internal
