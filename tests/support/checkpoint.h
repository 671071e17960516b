#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace tessera::internal::testing {

/// Runs `block` without a graph, and again inside backward, where it calls backward re-entrantly
/// (as torch.utils.checkpoint with use_reentrant=True). Does not restore the random state.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> block, const at::Tensor& input);

}  // namespace tessera::internal::testing
