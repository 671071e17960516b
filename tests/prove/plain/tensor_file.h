#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace prove {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Every parameter of `model` with its name.
NamedTensors parameters_of(const torch::nn::Module& model);

/// Writes the values one after the other in little-endian order to "<stem>.bin", and one line per
/// tensor to "<stem>.txt": name, dtype, offset in bytes, sizes. Throws c10::Error if it cannot.
void write_tensors(const std::string& stem, const NamedTensors& tensors);

}  // namespace prove
