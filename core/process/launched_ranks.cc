#include "tessera/core/process/launched_ranks.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "tessera/core/process/launcher_process.h"
#include "tessera/core/process/process_variables.h"
#include "tessera/core/process/variable_reader.h"

namespace tessera::internal {
namespace {

std::optional<int64_t> rank_of(int pid, const std::string& rank_variable) {
  const auto variables = variables_of_process(pid);
  if (!variables) return std::nullopt;
  return whole_number((*variables)(rank_variable.c_str()).value_or(""), 0, kGreatest);
}

}  // namespace

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
    const auto rank = rank_of(pid, rank_variable);
    if (!rank) continue;
    const auto launcher = find_launcher(rank_variable, pid);
    if (launcher.ok() && launcher->pid == own->pid) pids_of_rank[*rank].push_back(pid);
  }
  return pids_of_rank;
}

}  // namespace tessera::internal
