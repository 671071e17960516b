#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// LAMB (LambOptions), every operation rounded once. fp32 and fp64. Note [Whole tensors] in
/// whole_update.h.
const Algorithm& lamb_algorithm();

}  // namespace tessera::internal
