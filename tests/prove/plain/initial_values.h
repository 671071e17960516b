#pragma once

#include <torch/nn/module.h>

namespace prove {

/// Gives every parameter of `model` values by the formula (numbers.h), its place in the model the
/// seed: matrices within 1 / sqrt(columns), others within 1/4 of what they are.
void set_initial_values(torch::nn::Module& model);

}  // namespace prove
