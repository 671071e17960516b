#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/tests/prove/plain/model.h"

namespace prove {

/// Updates that every task trains for.
inline constexpr int64_t kSteps = 12;
/// Rows of a step, together: a power of two, so that weighing a row by 1 / kRows rounds nothing.
inline constexpr int64_t kRows = 64;

/// One training: which model, in which dtype, with which numbers for AdamW.
struct Task {
  std::string name;
  at::ScalarType dtype;
  torch::optim::AdamWOptions optimizer;
  std::function<std::shared_ptr<Model>()> make_untyped_model;
  std::function<Batch(int64_t index, int64_t rows)> make_untyped_batch;

  /// With its initial values.
  std::shared_ptr<Model> make_model() const;
  /// All rows of a step. Four batches take turns, so that there is something to learn.
  Batch batch(int64_t step) const;
};

/// All trainings that are compared:
///
///   residual          fp32, AdamW with its usual betas
///   residual_double   the same in fp64: a difference that was rounding shrinks by 2^29
///   hinge             fp32, gradients that are exact in any order (hinge_model.h), and betas and
///                     epsilon under which all of AdamW that LibTorch and Tessera round differently
///                     is exact as well. LibTorch takes fp32 square roots from a library that is
///                     an ulp off for one value in six, and fuses multiplications with additions
///                     where the processor can; Tessera does neither. Roots of squares are exact,
///                     and so are the products with beta1 = 1/2 and beta2 = 0
const std::vector<Task>& tasks();

}  // namespace prove
