#pragma once

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. Sets the number of threads of LibTorch's operators to this rank's share of the `cores`
/// cores that `ranks` ranks have together. Does nothing if a variable sets the number of OpenMP or
/// MKL threads, or makes OpenMP bind threads (not empty and not "false"): then OpenMP has counted
/// the cores of this rank alone. tessera-run sets the same share; mpirun and srun let every rank
/// use all cores on which it may run.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
