#pragma once

#include <vector>

#include <torch/torch.h>

#include "tessera/engine.h"
#include "tessera/parameter_table.h"

namespace tessera::internal::testing {

/// Computes the gradients of `loss` for all trainable parameters of `engine` with
/// torch::autograd::grad(). A gradient is undefined if the loss does not depend on its parameter.
/// The gradient of a tied parameter has the last of the parameter's names.
inline std::vector<NamedTensor> gradients_of(const Engine& engine, const at::Tensor& loss) {
  std::vector<NamedTensor> gradients;
  std::vector<at::Tensor> inputs;
  for (const Parameter& parameter : engine.parameters()) {
    if (!parameter.is_trainable) continue;
    const bool is_tied = !parameter.other_names.empty();
    gradients.push_back({is_tied ? parameter.other_names.back() : parameter.name, {}});
    inputs.push_back(parameter.tensor);
  }
  const auto values = torch::autograd::grad({loss}, inputs, /*grad_outputs=*/{},
                                            /*retain_graph=*/std::nullopt,
                                            /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i].tensor = values[i];
  return gradients;
}

}  // namespace tessera::internal::testing
