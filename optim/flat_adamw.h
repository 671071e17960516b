#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/core/layout/parameter_table.h"
#include "tessera/optim/flat_optimizer.h"
#include "tessera/optim/optimizer_plan.h"

namespace tessera {

/// Makes uninitialised 1-d memory of the host.
using AllocateMoments = std::function<at::Tensor(int64_t numel, at::ScalarType dtype)>;

/// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2), fused
/// into one pass over values, gradient and both moments. Follows torch::optim::AdamW's formulas;
/// fp32 and fp64 (bias corrections in double, per parameter). Both moments are [slice numel] per
/// shard in the values' dtype, zero at first, padding included. `group_of` is
/// OptimizerPlan::assign's answer. `shards` may be empty or hold slices without segments (a rank
/// that owns only padding). `allocate` makes the moments' memory; by default allocate_private().
std::unique_ptr<HostOptimizer> make_flat_adamw(const ParameterTable& table,
                                               const OptimizerPlan& plan,
                                               const std::vector<size_t>& group_of,
                                               std::vector<OptimizerShard> shards,
                                               const AllocateMoments& allocate = {});

}  // namespace tessera
