#include "tessera/optim/flat_optimizer.h"

#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

FlatOptimizer::FlatOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                             const std::vector<size_t>& group_of)
    : RefusingOptimizer(plan.defaults.clone()), groups_(*this, table, plan, group_of) {}

std::string without_kernels(const OptimizerPlan& plan) {
  const Algorithm& algorithm = plan.algorithm();
  for (size_t group = 0; group <= plan.groups.size(); ++group) {
    const Algorithm& own = plan.algorithm(group);
    if (own.make_device == nullptr) return own.name;
    if (&own != &algorithm) return algorithm.name + " and " + own.name + " in one plan";
    for (size_t i = own.device_states; i < own.states.size(); ++i) {
      const StateField& field = own.states[i];
      if (field.is_used_by(*plan.options(group).get()))
        return own.name + " with " + field.state.name;
    }
  }
  return "";
}

std::unique_ptr<DeviceOptimizer> make_device_optimizer(const ParameterTable& table,
                                                       const OptimizerPlan& plan,
                                                       const std::vector<size_t>& group_of,
                                                       std::vector<OptimizerShard> shards,
                                                       std::shared_ptr<const cuda::Api> api,
                                                       std::shared_ptr<Device> device) {
  const Algorithm& algorithm = plan.algorithm();
  TORCH_INTERNAL_ASSERT(without_kernels(plan).empty());
  return algorithm.make_device(table, plan, group_of, std::move(shards), std::move(api),
                               std::move(device));
}

}  // namespace tessera::internal
