#pragma once

#include <torch/nn/module.h>

namespace prove {

/// Sets every parameter of `model` to values of the formula in numbers.h, with its position in the
/// model as the seed: matrices within 1 / sqrt(columns), others within 1/4 of their current values.
void set_initial_values(torch::nn::Module& model);

}  // namespace prove
