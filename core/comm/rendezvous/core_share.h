#pragma once

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. Gives LibTorch's operators this rank's share of the cores that `ranks` ranks have. Does
/// nothing if a variable (not empty, and not "false") says how many threads OpenMP or MKL is to
/// use, or has OpenMP bind them: then OpenMP has counted the rank's own cores. tessera-run does the
/// same; mpirun and srun let every rank use all cores that it may run on.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
