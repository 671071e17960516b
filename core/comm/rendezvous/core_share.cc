#include "tessera/core/comm/rendezvous/core_share.h"

#include <algorithm>
#include <map>

#include <ATen/Parallel.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/available_cores.h"

namespace tessera::internal {
namespace {

std::string value_of(const char* name, const EnvironmentLookup& lookup) {
  return lookup(name).value_or("");
}

/// The variable by which OpenMP binds threads to cores; "" if there is none.
std::string binding_variable(const EnvironmentLookup& lookup) {
  if (absl::EqualsIgnoreCase(value_of("OMP_PROC_BIND", lookup), "false")) return "";
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    if (!value_of(name, lookup).empty()) return name;
  }
  return "";
}

}  // namespace

void share_cores(int cores, int ranks, const EnvironmentLookup& lookup) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    if (!value_of(name, lookup).empty()) return;
  }
  // Where the launcher gives each rank its cores, OpenMP has counted them and then bound this
  // thread to the first: then masks do not say how many they are.
  const bool is_counted = !binding_variable(lookup).empty() && cores_of().size() == 1;
  if (is_counted && cores >= ranks) return;
  at::set_num_threads(std::min(at::get_num_threads(), std::max(1, cores / std::max(1, ranks))));
}

std::string crowded_core(const std::vector<int>& pids, int64_t host_cores,
                         const EnvironmentLookup& lookup) {
  const std::string name = binding_variable(lookup);
  if (name.empty()) return "";
  // OpenMP binds the thread that loads it, the first one of its process.
  std::map<int, int> ranks_of_core;
  int64_t bound = 0;
  for (const int pid : pids) {
    const std::vector<int> cores = cores_of({pid});
    if (cores.size() != 1) continue;
    ++ranks_of_core[cores.front()];
    ++bound;
  }
  if (static_cast<int64_t>(ranks_of_core.size()) >= std::min(bound, host_cores)) return "";
  const auto most =
      std::max_element(ranks_of_core.begin(), ranks_of_core.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat("[rendezvous] ", name, ": got '", value_of(name.c_str(), lookup),
                      "', by which OpenMP has bound ", most->second, " ranks to core ", most->first,
                      ", expected other cores for each; unset it, or have the launcher bind ranks "
                      "(mpirun --map-by slot:PE=8 --bind-to core, srun --cpus-per-task 8)");
}

}  // namespace tessera::internal
