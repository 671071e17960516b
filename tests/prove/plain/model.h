#pragma once

#include <torch/nn/module.h>

#include "tessera/tests/prove/plain/batch.h"

namespace prove {

/// What is trained, plainly and sharded, from the same source.
class Model : public torch::nn::Module {
 public:
  /// The sum over the rows of `batch`. Not the mean: ranks have different numbers of rows when
  /// three share 64, and who weighs rows instead of ranks gets the mean over all of them.
  virtual at::Tensor loss(const Batch& batch) = 0;
};

}  // namespace prove
