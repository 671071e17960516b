#include "tessera/tests/prove/plain/initial_values.h"

#include <cmath>

#include <torch/torch.h>

#include "tessera/tests/prove/plain/numbers.h"

namespace prove {

void set_initial_values(torch::nn::Module& model) {
  const torch::NoGradGuard without_autograd;
  uint64_t seed = 1;
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor value = numbers(parameter.sizes(), seed++);
    if (parameter.dim() == 2) {
      parameter.copy_(value / std::sqrt(static_cast<double>(parameter.size(1))));
    } else {
      const bool is_scale = parameter.eq(1).all().item<bool>();  // LayerNorm's weight
      parameter.copy_(value / 4 + (is_scale ? 1.0 : 0.0));
    }
  }
}

}  // namespace prove
