#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera::internal::testing {

/// Inputs that depend only on rank and step.
class Inputs {
 public:
  Inputs(int rank, int step);
  /// Normally distributed, in fp32.
  at::Tensor normal(std::vector<int64_t> sizes);
  /// int64 in [0, high).
  at::Tensor integers(int64_t high, std::vector<int64_t> sizes);

 private:
  at::Generator generator_;
};

/// A model around one kind of layer.
struct LayerCase {
  std::string name;
  /// Registers layers in `model` and returns a function that computes a loss with them. The
  /// function holds the layers as torch modules, as a user's forward does, and does not use
  /// Tessera.
  using Loss = std::function<at::Tensor(Inputs&)>;
  std::function<Loss(torch::nn::Module& model)> build;
};

std::ostream& operator<<(std::ostream& stream, const LayerCase& layer);

/// One case for each kind of torch::nn layer known to access its parameters in its own way.
const std::vector<LayerCase>& layer_cases();

}  // namespace tessera::internal::testing
