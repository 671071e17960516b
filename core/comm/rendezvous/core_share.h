#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. Gives LibTorch's operators this rank's share of the cores that `ranks` ranks have, unless
/// OMP_NUM_THREADS or MKL_NUM_THREADS says how many threads (an empty one does not), or OpenMP
/// binds them and has counted the rank's own cores. It is what tessera-run does; mpirun and srun
/// let every rank use all cores that it may run on.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

/// Local. What is wrong where OpenMP has bound several ranks of this host, with these processes, to
/// one core because of a variable that all of them read, although the host has `host_cores`; "" if
/// nothing is.
std::string crowded_core(const std::vector<int>& pids, int64_t host_cores,
                         const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
