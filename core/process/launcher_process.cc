#include "tessera/core/process/launcher_process.h"

#include <unistd.h>

#include <fstream>
#include <optional>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

// What starts the processes of MPICH and Intel MPI, and is never one of them, although it may have
// the variables of a process that has started mpiexec.
constexpr const char* kProxy = "hydra_pmi_proxy";

/// What a variable was when a process was started; nothing if it does not say, "" without it.
std::optional<std::string> variable_of(int pid, const std::string& name) {
  std::ifstream environment(absl::StrCat("/proc/", pid, "/environ"));
  if (!environment.is_open()) return std::nullopt;
  const std::string prefix = absl::StrCat(name, "=");
  std::string entry;
  while (std::getline(environment, entry, '\0')) {
    if (absl::StartsWith(entry, prefix)) return entry.substr(prefix.size());
  }
  if (environment.bad()) return std::nullopt;
  return "";
}

bool is_proxy(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  return std::getline(file, name) && name == kProxy;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable) {
  const std::string own = process_environment(variable.c_str()).value_or("");
  auto status = process_status(::getpid());
  while (status && status->parent > 0) {
    const int pid = status->parent;
    status = process_status(pid);
    if (!status) break;
    const auto value = variable_of(pid, variable);
    if (is_proxy(pid) || (value && (value->empty() || *value != own))) {
      return LauncherProcess{pid, status->start_time};
    }
  }
  return absl::NotFoundError(absl::StrCat("no process that started this one and has not its ",
                                          variable, " is to be seen"));
}

}  // namespace tessera::internal
