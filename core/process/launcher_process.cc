#include "tessera/core/process/launcher_process.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"
#include "tessera/core/process/variable_reader.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

/// A variable that a process was started with.
struct StartVariable {
  bool is_shown = false;  // else it is another user's, setuid, gone, or /proc is hidden
  std::optional<std::string> value;
};

StartVariable variable_of_process(int pid, const std::string& name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  StartVariable found{.is_shown = file.is_open(), .value = {}};
  std::string entry;
  while (!found.value && std::getline(file, entry, '\0')) {  // getenv's is the first
    if (absl::StartsWith(entry, name + "=")) found.value = entry.substr(name.size() + 1);
  }
  if (file.bad()) found.is_shown = false;
  return found;
}

}  // namespace

absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable, int pid) {
  const auto own = pid == ::getpid() ? process_environment(variable.c_str())
                                     : variable_of_process(pid, variable).value;
  auto status = process_status(pid);
  while (status && status->parent > 0) {
    const int ancestor = status->parent;
    status = process_status(ancestor);
    if (!status) break;
    const StartVariable its = variable_of_process(ancestor, variable);
    const bool may_be_between = !its.is_shown || (own && its.value == own);
    if (!may_be_between) return LauncherProcess{ancestor, status->start_time};
  }
  return absl::NotFoundError(absl::StrCat("no process that started process ", pid,
                                          " and has not its ", variable, " is to be seen"));
}

std::map<int, std::vector<int>> launched_ranks(const std::string& rank_variable) {
  std::map<int, std::vector<int>> pids_of_rank;
  const auto own = find_launcher(rank_variable);
  if (!own.ok()) return pids_of_rank;
  std::error_code none;  // /proc is hidden, or a process has ended
  std::filesystem::directory_iterator processes("/proc", none);
  for (; processes != std::filesystem::directory_iterator(); processes.increment(none)) {
    const auto number = whole_number(processes->path().filename().string(), 1, kGreatest);
    if (!number) continue;
    const int pid = static_cast<int>(*number);
    const std::string text = variable_of_process(pid, rank_variable).value.value_or("");
    const auto rank = whole_number(text, 0, kGreatest);
    if (!rank) continue;
    const auto launcher = find_launcher(rank_variable, pid);
    if (launcher.ok() && launcher->pid == own->pid) pids_of_rank[*rank].push_back(pid);
  }
  return pids_of_rank;
}

}  // namespace tessera::internal
