#include "tessera/core/comm/mpi/absent_ranks.h"

#include <algorithm>
#include <map>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/process/launcher_process.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal::mpi {
namespace {

bool is_stopped(int pid) {
  const auto status = process_status(pid);
  return status && status->is_stopped();
}

bool has_come(const std::vector<int>& pids) {
  return std::any_of(pids.begin(), pids.end(), [](int pid) {
    return has_thread(pid, Progress::kThreadName) && !is_stopped(pid);
  });
}

std::string describe_process(int pid) {
  const auto status = process_status(pid);
  const std::string does = status ? status->describe() : "";
  return absl::StrCat("pid ", pid, does.empty() ? "" : ", which ", does);
}

}  // namespace

std::string absent_ranks(const Environment& environment) {
  auto pids_of_rank = launched_ranks(environment.rank_variable);
  if (pids_of_rank.empty()) return "";
  const size_t seen = pids_of_rank.size();
  // A script that sets RANK may stand above each process alone.
  const bool all_are_here = environment.is_of_scheduler() && environment.is_one_host();
  for (int rank = 0; all_are_here && rank < environment.world_size; ++rank) {
    pids_of_rank.try_emplace(rank);
  }
  std::vector<std::string> absent;
  for (const auto& [rank, pids] : pids_of_rank) {
    if (pids.empty()) {
      absent.push_back(absl::StrCat("rank ", rank, " (no process of it is seen)"));
    } else if (!has_come(pids)) {
      absent.push_back(absl::StrCat("rank ", rank, " (", describe_process(pids.back()), ")"));
    }
  }
  if (absent.empty()) return absl::StrCat("the ", seen, " ranks seen on this machine have");
  return absl::StrCat(absl::StrJoin(absent, ", "), absent.size() == 1 ? " has not" : " have not");
}

}  // namespace tessera::internal::mpi
