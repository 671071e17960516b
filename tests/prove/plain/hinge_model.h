#pragma once

#include <torch/torch.h>

#include "tessera/tests/prove/plain/model.h"

namespace prove {

/// Linear classifiers with the hinge loss max(0, 1 - target * score) on whole numbers. A row adds
/// `-target * input` or nothing to the gradient, so gradients are sums of small whole numbers:
/// exact in any order and grouping. So training on ranks must equal training in one process to the
/// bit, not only up to rounding.
class HingeModel final : public Model {
 public:
  static constexpr int64_t kInputs = 24;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kLabels = 5;  ///< of each head

  HingeModel();
  at::Tensor loss(const Batch& batch) override;

  /// Batch number `index`: inputs in [-4, 4], targets -1 and 1.
  static Batch batch(int64_t index, int64_t rows);

  /// The sign of 1 - target * score decides whether a row counts, and scores are rounded. Returns
  /// the distance from 0 of the nearest value, in units of the largest possible rounding error.
  /// Above 1 every order of the sums decides alike, and the gradients are exact.
  double closest_decision(const Batch& batch);

 private:
  at::Tensor scores(const at::Tensor& input);

  torch::nn::ModuleList heads_;
};

}  // namespace prove
