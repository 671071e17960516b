#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// RMSprop (Tieleman and Hinton, lecture 6.5, 2012), plain, centered and with momentum, fused into
/// one pass. fp32 and fp64. On processors with fused multiply-adds each step is within two ulps of
/// torch::optim::RMSprop's, whose square roots are not rounded correctly. Options are
/// torch::optim::RMSpropOptions.
const Algorithm& rmsprop_algorithm();

}  // namespace tessera::internal
