#include "tessera/core/process/launcher_process.h"

#include <unistd.h>

#include <fstream>
#include <optional>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

/// Whether a process was started with a variable; nothing if it does not say.
std::optional<bool> has_variable(int pid, const std::string& name) {
  std::ifstream environment(absl::StrCat("/proc/", pid, "/environ"));
  if (!environment.is_open()) return std::nullopt;
  const std::string prefix = absl::StrCat(name, "=");
  std::string entry;
  while (std::getline(environment, entry, '\0')) {
    if (absl::StartsWith(entry, prefix)) return true;
  }
  if (environment.bad()) return std::nullopt;
  return false;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable) {
  auto status = process_status(::getpid());
  while (status && status->parent > 0) {
    const int pid = status->parent;
    status = process_status(pid);
    if (status && has_variable(pid, variable) == false) {
      return LauncherProcess{pid, status->start_time};
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no process that started this one without ", variable, " is to be seen"));
}

}  // namespace tessera::internal
