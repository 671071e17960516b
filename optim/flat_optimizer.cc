#include "tessera/optim/flat_optimizer.h"

#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

FlatOptimizer::FlatOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                             const std::vector<size_t>& group_of)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, plan.defaults.clone()),
      groups_(*this, table, plan, group_of) {}

torch::Tensor FlatOptimizer::step(LossClosure) {
  TORCH_CHECK(false,
              "[optim] step: got a call on the sharded optimizer, expected one on its engine; call "
              "engine->step()");
}

void FlatOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK(false,
              "[optim] save: got torch::save, expected none; take engine->state_dict(), which has "
              "the optimizer's state by name");
}

void FlatOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK(false,
              "[optim] load: got torch::load, expected none; call engine->load_state_dict(), which "
              "takes the optimizer's state by name");
}

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
