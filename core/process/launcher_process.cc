#include "tessera/core/process/launcher_process.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"
#include "tessera/core/process/process_variables.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

// What starts the processes of MPICH and Intel MPI, and is never one of them, although it may have
// the variables of a process that has started mpiexec.
constexpr const char* kProxy = "hydra_pmi_proxy";

bool is_proxy(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  return std::getline(file, name) && name == kProxy;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable) {
  const auto own = process_environment(variable.c_str());
  auto status = process_status(::getpid());
  while (status && status->parent > 0) {
    const int pid = status->parent;
    status = process_status(pid);
    if (!status) break;
    const auto variables = variables_of_process(pid);
    const bool may_be_between = !variables || (own && (*variables)(variable.c_str()) == own);
    if (is_proxy(pid) || !may_be_between) return LauncherProcess{pid, status->start_time};
  }
  return absl::NotFoundError(absl::StrCat("no process that started this one and has not its ",
                                          variable, " is to be seen"));
}

}  // namespace tessera::internal
