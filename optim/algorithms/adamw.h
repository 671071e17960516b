#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2), fused
/// into one pass over values, gradient and both moments, on the host and on devices. Follows
/// torch::optim::AdamW's formulas. Takes fp32 and fp64, and computes each parameter's bias
/// corrections in double. Options are torch::optim::AdamWOptions.
const Algorithm& adamw_algorithm();

}  // namespace tessera::internal
