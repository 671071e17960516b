#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Lion, fused into one pass. fp32 and fp64. Options are tessera::LionOptions.
const Algorithm& lion_algorithm();

}  // namespace tessera::internal
