#include "tessera/core/process/available_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

#include "tessera/core/process/control_groups.h"

namespace tessera::internal {
namespace {

/// The CPU time that a control group may use in each period. Both numbers are in microseconds.
struct Quota {
  int64_t time = -1;  // negative: no limit
  int64_t period = 0;
};

Quota quota_of(const std::string& folder) {
  Quota quota;
  if (std::ifstream(folder + "/cpu.max") >> quota.time >> quota.period) return quota;
  if (std::ifstream(folder + "/cpu.cfs_quota_us") >> quota.time &&
      std::ifstream(folder + "/cpu.cfs_period_us") >> quota.period) {
    return quota;
  }
  return {};
}

}  // namespace

std::vector<int> cores_of(const std::vector<int>& pids) {
  // The number of cpu_set_t that together have room for the cores of any kernel. With too few,
  // sched_getaffinity() fails.
  constexpr size_t kSets = 8;
  cpu_set_t all[kSets];
  cpu_set_t of_one[kSets];
  CPU_ZERO_S(sizeof(all), all);
  for (const int pid : pids) {
    if (::sched_getaffinity(pid, sizeof(of_one), of_one) == 0) {
      CPU_OR_S(sizeof(all), all, all, of_one);
    }
  }
  std::vector<int> cores;
  for (size_t core = 0; core < kSets * CPU_SETSIZE; ++core) {
    if (CPU_ISSET_S(core, sizeof(all), all)) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

std::optional<int> core_quota(const std::string& root) {
  std::optional<int> least;
  for (const std::string& folder : control_group_folders("cpu", root)) {
    const Quota quota = quota_of(folder);
    if (quota.time < 0 || quota.period <= 0) continue;
    const int64_t cores = std::clamp<int64_t>(quota.time / quota.period, 1,
                                              least.value_or(std::numeric_limits<int>::max()));
    least = static_cast<int>(cores);
  }
  return least;
}

int available_cores(const std::vector<int>& pids) {
  auto cores = static_cast<int>(cores_of(pids).size());
  if (cores == 0) cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(cores, core_quota().value_or(cores)));
}

}  // namespace tessera::internal
