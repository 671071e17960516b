#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::internal {

/// Returns the parameters of BatchNorm layers, synchronised or not. They keep their dtype, because
/// with 16-bit inputs LibTorch needs them in the dtype of the running statistics. Local.
std::set<const c10::TensorImpl*> batch_norm_parameters(const torch::nn::Module& model);

/// Returns one line for each BatchNorm layer in `model` that is LibTorch's own:
/// Options::requires_sync_batch_norm refuses these layers. Local.
std::vector<std::string> problems_of_batch_norms(const torch::nn::Module& model);

/// Returns a line for each module of `model` that Reproducible::kAnyWorldSize refuses. It refuses a
/// module whose forward takes statistics over all ranks. It also refuses a module whose forward
/// keeps statistics of one rank's batches in a buffer. If `ignores` returns true for the buffer,
/// that is left to the user and not refused. Local.
std::vector<std::string> problems_of_statistics(
    const torch::nn::Module& model, const std::function<bool(std::string_view buffer)>& ignores);

/// Returns the name of the first SyncBatchNorm in `model` in training mode, whose forward is
/// collective; "" if there is none. Local.
std::string first_sync_batch_norm(const torch::nn::Module& model);

}  // namespace tessera::internal
