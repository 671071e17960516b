#include "tessera/optim/flat_optimizer.h"

#include <c10/util/Exception.h>

namespace tessera {

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

}  // namespace tessera
