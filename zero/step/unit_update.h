#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/optim/flat_optimizer.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"

namespace tessera::internal {

/// Updates this rank's slice of trainable `unit` by its mean gradient times `scale` and puts the
/// new values into its shard; other ranks see them after ParameterStore::show_updates(). Does
/// nothing if no parameter of it is used (used[i] != 0, by table entry). Local.
void update_unit(const UnitPlan& plan, size_t unit, const at::Tensor& gradient,
                 const std::vector<uint8_t>& used, double scale, HostOptimizer& optimizer,
                 ParameterStore& store);

}  // namespace tessera::internal
