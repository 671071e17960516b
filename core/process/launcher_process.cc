#include "tessera/core/process/launcher_process.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"
#include "tessera/core/process/process_variables.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

// What starts the processes of MPICH and Intel MPI, of Open MPI, and of SLURM, and is never one of
// them, although it may have the variables of a rank, which has started it itself or whose they
// were.
constexpr const char* kPrograms[] = {"hydra_pmi_proxy", "mpirun",  "mpirun.openmpi", "mpiexec",
                                     "mpiexec.openmpi", "orterun", "orted",          "prterun",
                                     "prted",           "prte",    "slurmstepd"};

bool is_launcher(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  return std::getline(file, name) &&
         std::find(std::begin(kPrograms), std::end(kPrograms), name) != std::end(kPrograms);
}

std::optional<std::string> variable_of_process(int pid, const std::string& name) {
  if (pid == ::getpid()) return process_environment(name.c_str());
  const auto variables = variables_of_process(pid);
  return variables ? (*variables)(name.c_str()) : std::nullopt;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable, int pid) {
  const auto own = variable_of_process(pid, variable);
  auto status = process_status(pid);
  while (status && status->parent > 0) {
    const int ancestor = status->parent;
    status = process_status(ancestor);
    if (!status) break;
    const auto variables = variables_of_process(ancestor);
    const bool may_be_between = !variables || (own && (*variables)(variable.c_str()) == own);
    if (is_launcher(ancestor) || !may_be_between)
      return LauncherProcess{ancestor, status->start_time};
  }
  return absl::NotFoundError(absl::StrCat("no process that started process ", pid,
                                          " and has not its ", variable, " is to be seen"));
}

}  // namespace tessera::internal
