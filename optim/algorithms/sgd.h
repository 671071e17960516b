#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// SGD with momentum, dampening, Nesterov momentum and weight decay, in one pass over values,
/// gradient and momentum, on the host. Has the formulas of torch::optim::SGD and, on processors
/// with fused multiply-adds, gives the same bits. fp32 and fp64. Options are
/// torch::optim::SGDOptions. As in torch::optim::SGD, a parameter's first update with momentum
/// stores the gradient in the momentum undampened. To recognise that update, a parameter's step
/// count counts updates with momentum only.
const Algorithm& sgd_algorithm();

}  // namespace tessera::internal
