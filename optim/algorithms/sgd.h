#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// SGD with momentum, dampening, Nesterov momentum and weight decay, in one pass over values,
/// gradient and momentum, on the host. The formulas of torch::optim::SGD, and on processors with
/// fused multiply-adds its bits; fp32 and fp64. Options are torch::optim::SGDOptions. As there,
/// a parameter's first update with momentum stores its gradient in the momentum undampened; its
/// step count counts updates with momentum only.
const Algorithm& sgd_algorithm();

}  // namespace tessera::internal
