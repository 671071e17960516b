#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Returns this rank's share of the optimizer: for each trainable unit its optimizer slice, with
/// the pieces of parameters in it. Views, no copies. values[unit]: [unit numel / o].
std::vector<OptimizerShard> optimizer_shards(const UnitPlan& plan, const SliceMap& slices,
                                             const std::vector<at::Tensor>& values);

}  // namespace tessera::internal
