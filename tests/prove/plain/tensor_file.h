#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace prove {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Every parameter of `model`, by name.
NamedTensors parameters_of(const torch::nn::Module& model);

/// Writes the values, one after the other, to "<stem>.bin" as they lie in memory of a little-endian
/// machine, and to "<stem>.txt" a line for each tensor: name, dtype, offset in bytes, sizes.
/// Throws c10::Error if it cannot.
void write_tensors(const std::string& stem, const NamedTensors& tensors);

}  // namespace prove
