#include "tessera/core/process/launched_ranks.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include <absl/strings/numbers.h>

#include "tessera/core/process/launcher_process.h"
#include "tessera/core/process/process_variables.h"

namespace tessera::internal {
namespace {

std::optional<int> number_of(const std::string& text) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

std::optional<int> rank_of(int pid, const std::string& rank_variable) {
  const auto variables = variables_of_process(pid);
  if (!variables) return std::nullopt;
  const auto rank = (*variables)(rank_variable.c_str());
  return rank ? number_of(*rank) : std::nullopt;
}

}  // namespace

std::map<int, std::vector<int>> launched_ranks(const std::string& rank_variable) {
  std::map<int, std::vector<int>> pids_of_rank;
  const auto own = find_launcher(rank_variable);
  if (!own.ok()) return pids_of_rank;
  std::error_code none;  // /proc is hidden, or a process has ended
  std::filesystem::directory_iterator processes("/proc", none);
  for (; processes != std::filesystem::directory_iterator(); processes.increment(none)) {
    const auto pid = number_of(processes->path().filename().string());
    if (!pid) continue;
    const auto rank = rank_of(*pid, rank_variable);
    if (!rank) continue;
    const auto launcher = find_launcher(rank_variable, *pid);
    if (!launcher.ok() || launcher->pid != own->pid) continue;
    pids_of_rank[*rank].push_back(*pid);
  }
  return pids_of_rank;
}

}  // namespace tessera::internal
