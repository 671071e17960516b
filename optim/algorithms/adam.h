#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Adam with weight decay in the gradient (Kingma and Ba, arXiv 1412.6980), also as AMSGrad, fused
/// into one pass. fp32 and fp64. On processors with fused multiply-adds each step is within two
/// ulps of torch::optim::Adam's, whose square roots are not rounded correctly. Options are
/// torch::optim::AdamOptions.
const Algorithm& adam_algorithm();

}  // namespace tessera::internal
