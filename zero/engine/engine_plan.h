#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/core/options/resolved_options.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/engine/engine_context.h"

namespace tessera::internal {

/// Returns the units that the parameters of `table` form under `options`. If `optimizer` cannot
/// train them in `world`, adds why to `problems` and returns nothing. Local.
std::optional<UnitPlan> plan_units(const torch::nn::Module& model, const ParameterTable& table,
                                   const OptimizerPlan& optimizer, const ResolvedOptions& options,
                                   const ProcessGroup& world, std::vector<std::string>& problems);

/// Returns lines about the engine and `buffers` that must be equal on all ranks. A difference in an
/// earlier line tends to explain differences in later ones.
std::vector<std::string> fingerprint(const EngineParts& parts,
                                     const std::vector<NamedTensor>& buffers);

}  // namespace tessera::internal
