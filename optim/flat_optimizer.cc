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
  for (size_t group = 0; group <= plan.groups.size(); ++group) {
    const Algorithm& algorithm = plan.algorithm(group);
    if (!algorithm.on_device.has_value()) return algorithm.name;
  }
  return "";
}

}  // namespace tessera::internal
