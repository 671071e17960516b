#pragma once

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. `ranks` ranks share `cores` cores. Sets the number of threads of LibTorch's operators to
/// this rank's share, unless it is lower already. Does nothing if an environment variable sets the
/// number of OpenMP or MKL threads, or makes OpenMP bind its threads (OpenMP has then counted only
/// this rank's cores); a variable that is empty or "false" does not count. tessera-run sets the
/// same share; mpirun and srun let every rank use all cores on which it may run.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
