#pragma once

#include <torch/torch.h>

#include "tessera/tests/prove/plain/model.h"

namespace prove {

/// Linear classifiers with the hinge loss max(0, 1 - target * score) on whole numbers. A row adds
/// `-target * input` to the gradient or nothing, so gradients are sums of small whole numbers:
/// exact in any order and any grouping. Then training on ranks must equal training in one process
/// to the bit, not only within rounding.
class HingeModel final : public Model {
 public:
  static constexpr int64_t kInputs = 24;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kLabels = 5;  ///< of each head

  HingeModel();
  at::Tensor loss(const Batch& batch) override;

  /// Batch number `index`: inputs in [-4, 4], targets -1 and 1.
  static Batch batch(int64_t index, int64_t rows);

  /// Whether a row counts is decided by the sign of 1 - target * score, and scores are rounded. How
  /// far the nearest one is from 0, in units of what rounding can change at most: above 1, every
  /// order of the sums decides alike, and the gradients are exact.
  double closest_decision(const Batch& batch);

 private:
  at::Tensor scores(const at::Tensor& input);

  torch::nn::ModuleList heads_;
};

}  // namespace prove
