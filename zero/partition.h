#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/unit_plan.h"
#include "tessera/optim/flat_optimizer.h"

namespace tessera {

/// The optimizer's share of this rank: for each unit the part `kept[unit]` of its flat values, with
/// the pieces of parameters in it. Views, no copies. values[unit]: [unit numel].
std::vector<OptimizerShard> optimizer_shards(const UnitPlan& plan,
                                             const std::vector<at::Tensor>& values,
                                             const std::vector<Range>& kept);

}  // namespace tessera
