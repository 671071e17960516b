#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/tests/prove/plain/model.h"

namespace prove {

/// The number of updates of every task.
inline constexpr int64_t kSteps = 12;
/// The number of rows of a step over all ranks: a power of two, so that weighing a row by 1 / kRows
/// is exact.
inline constexpr int64_t kRows = 64;

/// One training: its model, its dtype and its options of AdamW.
struct Task {
  std::string name;
  at::ScalarType dtype;
  torch::optim::AdamWOptions optimizer;
  std::function<std::shared_ptr<Model>()> make_untyped_model;
  std::function<Batch(int64_t index, int64_t rows)> make_untyped_batch;

  /// Returns the model with its initial values.
  std::shared_ptr<Model> make_model() const;
  /// All rows of a step. Four batches repeat, so that there is something to learn.
  Batch batch(int64_t step) const;
};

/// All trainings that are compared:
///
///   residual          fp32, AdamW with its usual betas
///   residual_double   the same in fp64: rounding errors shrink by 2^29
///   hinge             fp32, with gradients that are exact in any order (hinge_model.h), and with
///                     betas and epsilon that make every operation of AdamW exact that LibTorch
///                     and Tessera round differently. LibTorch takes fp32 square roots from a
///                     library that is an ulp off for one value in six, and fuses multiplications
///                     with additions if the processor can; Tessera does neither. Roots of squares
///                     are exact, and so are products with beta1 = 1/2 and beta2 = 0
const std::vector<Task>& tasks();

}  // namespace prove
