#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/parameter_table.h"

namespace tessera::internal::testing {

/// A module composed in a test: modules and parameters with any names.
class Box : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& input) { return input; }  // Sequential needs it

  template <typename Part>
  Part add(const std::string& name, Part part) {
    return register_module(name, std::move(part));
  }
  at::Tensor own(const std::string& name, int64_t numel, at::ScalarType dtype = at::kFloat) {
    return register_parameter(name, at::zeros({numel}, dtype));
  }
  at::Tensor tie(const std::string& name, const at::Tensor& tensor) {
    return register_parameter(name, tensor);
  }
  at::Tensor freeze(const std::string& name, int64_t numel, at::ScalarType dtype = at::kFloat) {
    return register_parameter(name, at::zeros({numel}, dtype), /*requires_grad=*/false);
  }
};

/// A Box with one parameter "w".
inline std::shared_ptr<Box> box_of(int64_t numel, at::ScalarType dtype = at::kFloat) {
  auto box = std::make_shared<Box>();
  box->own("w", numel, dtype);
  return box;
}

/// A list of `parts`.
template <typename Part>
torch::nn::ModuleList list_of(const std::vector<Part>& parts) {
  torch::nn::ModuleList list;
  for (const Part& part : parts) list->push_back(part);
  return list;
}

/// The smallest module with the structure of a GPT: {wte, layers: ModuleList{Block, ...}, norm,
/// head}.
class TinyGpt : public torch::nn::Module {
 public:
  class Block : public torch::nn::Module {
   public:
    Block() {
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
      register_module("fc", torch::nn::Linear(4, 4));
    }
  };

  explicit TinyGpt(int layers) {
    auto wte = register_module("wte", torch::nn::Embedding(10, 4));
    torch::nn::ModuleList blocks;
    for (int i = 0; i < layers; ++i) blocks->push_back(std::make_shared<Block>());
    register_module("layers", blocks);
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    auto head = register_module("head", std::make_shared<Box>());
    head->tie("weight", wte->weight);
  }
};

/// The table that parallelize() makes of `model`.
inline ParameterTable table_of(const torch::nn::Module& model) {
  std::vector<NamedTensor> registered;
  for (const auto& entry : model.named_parameters()) {
    registered.push_back({entry.key(), entry.value()});
  }
  return ParameterTable(std::move(registered));
}

}  // namespace tessera::internal::testing
