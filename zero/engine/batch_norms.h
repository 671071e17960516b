#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::internal {

/// The parameters of BatchNorm layers, synchronised or not, whose running statistics are fp32:
/// LibTorch computes with 16-bit inputs beside them only if the parameters are fp32 as well. Local.
std::set<const c10::TensorImpl*> batch_norm_parameters(const torch::nn::Module& model);

/// One line for each of LibTorch's BatchNorm layers in `model`, which
/// Options::requires_sync_batch_norm refuses. Local.
std::vector<std::string> problems_of_batch_norms(const torch::nn::Module& model);

/// One line for each module of `model` whose forward writes statistics of a rank's own batches that
/// `ignores` does not leave to the user, or takes them over ranks: under
/// Reproducible::kAnyWorldSize. Local.
std::vector<std::string> problems_of_statistics(
    const torch::nn::Module& model, const std::function<bool(std::string_view buffer)>& ignores);

/// The name of the first SyncBatchNorm in `model` that is in training, so that its forward is
/// collective; "" if there is none. Local.
std::string first_sync_batch_norm(const torch::nn::Module& model);

}  // namespace tessera::internal
