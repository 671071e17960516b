#include "tessera/optim/slices/flat_optimizer.h"

namespace tessera::internal {

FlatOptimizer::FlatOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                             const std::vector<size_t>& group_of)
    : RefusingOptimizer(plan.defaults.clone()), groups_(*this, table, plan, group_of) {}

double FlatOptimizer::initial_state(size_t parameter, size_t state) const {
  const size_t group = groups_.group_of(parameter);
  const std::vector<StateField>& fields = groups_.algorithm(group).states;
  size_t i = 0;
  while (i < fields.size() && groups_.kept_state(group, i) != state) ++i;
  return fields.at(i).initial_value(groups_.options(group));
}

std::string without_kernels(const OptimizerPlan& plan) {
  for (size_t group = 0; group <= plan.groups.size(); ++group) {
    const Algorithm& algorithm = plan.algorithm(group);
    if (!algorithm.on_device.has_value()) return algorithm.name;
  }
  return "";
}

}  // namespace tessera::internal
