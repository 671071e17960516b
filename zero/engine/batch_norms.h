#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::internal {

/// Returns the parameters of BatchNorm layers, synchronised or not, whose running statistics are
/// fp32, because with 16-bit inputs LibTorch needs these parameters in the dtype of the statistics.
/// Local.
std::set<const c10::TensorImpl*> batch_norm_parameters(const torch::nn::Module& model);

/// Returns one line for each of LibTorch's BatchNorm layers in `model`, which
/// Options::requires_sync_batch_norm refuses. Local.
std::vector<std::string> problems_of_batch_norms(const torch::nn::Module& model);

/// Returns a line for each module of `model` that Reproducible::kAnyWorldSize refuses, because its
/// forward takes statistics over all ranks, or keeps statistics of one rank's batches in a buffer
/// that `ignores` does not leave to the user. Local.
std::vector<std::string> problems_of_statistics(
    const torch::nn::Module& model, const std::function<bool(std::string_view buffer)>& ignores);

/// Returns the name of the first SyncBatchNorm in `model` in training mode, whose forward is
/// collective; "" if there is none. Local.
std::string first_sync_batch_norm(const torch::nn::Module& model);

}  // namespace tessera::internal
