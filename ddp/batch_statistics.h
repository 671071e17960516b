#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal {

/// The arguments of a batch normalisation in training: BatchNorm's tensors (undefined where it has
/// none), and the ranks whose samples form one batch.
struct BatchNormCall {
  at::Tensor input = {};  ///< [N, C, ...]; N may be 0
  at::Tensor weight = {}, bias = {};
  at::Tensor running_mean = {}, running_var = {};
  double momentum = 0.0;
  double eps = 0.0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::string layer = {};  ///< for errors
};

/// Normalizes call.input by the statistics of all ranks. Collective and blocking, in backward too.
/// Has the contract that the comment of SyncBatchNormImplBase gives for its forward().
at::Tensor normalize_over_ranks(const BatchNormCall& call);

}  // namespace tessera::internal
