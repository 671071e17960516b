#pragma once

#include <torch/nn/module.h>

#include "tessera/tests/prove/plain/batch.h"

namespace prove {

/// A model for plain and sharded training, from the same source.
class Model : public torch::nn::Module {
 public:
  /// The sum over the rows of `batch`. Not the mean: three ranks that share 64 rows have different
  /// numbers of rows, and weighing rows instead of ranks gives the mean over all rows.
  virtual at::Tensor loss(const Batch& batch) = 0;
};

}  // namespace prove
