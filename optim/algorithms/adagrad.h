#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), fused into one pass. fp32 and fp64. On
/// processors with fused multiply-adds each step is within two ulps of torch::optim::Adagrad's,
/// whose square roots are not rounded correctly. Options are torch::optim::AdagradOptions.
const Algorithm& adagrad_algorithm();

}  // namespace tessera::internal
