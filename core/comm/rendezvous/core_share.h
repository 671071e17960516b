#pragma once

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. Gives LibTorch's operators this rank's share of the cores that `ranks` ranks have, unless
/// a variable says how many threads OpenMP or MKL is to use, or has OpenMP bind them (an empty one
/// and "false" do not): then OpenMP has counted the rank's own cores. It is what tessera-run does;
/// mpirun and srun let every rank use all cores that it may run on.
void share_cores(int cores, int ranks, const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
