#pragma once

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. Gives LibTorch's operators this rank's share of the cores that `ranks` ranks have. Does
/// nothing if an environment variable (not empty, and not "false") sets the number of threads of
/// OpenMP or MKL, or makes OpenMP bind its threads, because OpenMP has then counted the rank's own
/// cores. tessera-run does the same; mpirun and srun let every rank use all cores that it may run
/// on.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
