#include "tessera/optim/plan/refusing_optimizer.h"

#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace tessera::internal {

RefusingOptimizer::RefusingOptimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(defaults)) {}

torch::Tensor RefusingOptimizer::step(LossClosure) {
  TORCH_CHECK(false,
              "[optim] step: got a call on the sharded optimizer, expected one on its engine; call "
              "engine->step()");
}

void RefusingOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK(false,
              "[optim] save: got torch::save, expected none; take engine->state_dict(), which has "
              "the optimizer's state by name");
}

void RefusingOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK(false,
              "[optim] load: got torch::load, expected none; call engine->load_state_dict(), which "
              "takes the optimizer's state by name");
}

}  // namespace tessera::internal
