#pragma once

#include <torch/optim/optimizer.h>

#include "tessera/optim/formulas/adam_hyper_parameters.h"

namespace tessera::internal {

/// Returns the numbers in `given`, which is of type Options: AdamOptions, or a type with accessors
/// of the same names. amsgrad() may be missing.
template <typename Options>
AdamHyperParameters adam_hyper_parameters(const torch::optim::OptimizerOptions& given) {
  const auto& options = static_cast<const Options&>(given);
  const auto [beta1, beta2] = options.betas();
  AdamHyperParameters numbers = {.lr = options.lr(),
                                 .beta1 = beta1,
                                 .beta2 = beta2,
                                 .eps = options.eps(),
                                 .weight_decay = options.weight_decay()};
  if constexpr (requires { options.amsgrad(); }) numbers.is_amsgrad = options.amsgrad();
  return numbers;
}

}  // namespace tessera::internal
