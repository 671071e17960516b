#include "tessera/core/comm/rendezvous/core_share.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <absl/strings/match.h>

namespace tessera::internal {

void share_cores(int cores, int ranks, const EnvironmentLookup& lookup) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES",
                           "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    const std::string value = lookup(name).value_or("");
    if (!value.empty() && !absl::EqualsIgnoreCase(value, "false")) return;
  }
  at::set_num_threads(std::min(at::get_num_threads(), std::max(1, cores / std::max(1, ranks))));
}

}  // namespace tessera::internal
