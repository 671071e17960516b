#pragma once

#include <torch/torch.h>

#include "tessera/tests/prove/plain/model.h"

namespace prove {

/// A classifier of residual blocks, with the parts of transformers except attention. Sizes are odd
/// on purpose: no number of ranks divides them.
class ResidualModel final : public Model {
 public:
  static constexpr int64_t kInputs = 13;
  static constexpr int64_t kClasses = 7;

  ResidualModel();
  at::Tensor loss(const Batch& batch) override;

  /// Batch number `index`; the sum of the first two inputs decides the class.
  static Batch batch(int64_t index, int64_t rows);

 private:
  class Block;

  torch::nn::Linear embed_ = nullptr;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};

}  // namespace prove
