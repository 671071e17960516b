#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// torch::optim::AdamW over the distinct trainable parameters of `model`, grouped as `plan` says.
torch::optim::AdamW plain_optimizer(const torch::nn::Module& model, const OptimizerPlan& plan);

/// The distinct trainable parameters of `model`. (Module::parameters() lists tied ones twice.)
std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model);

/// The result of training without Tessera: one process, torch::optim::AdamW and clip_grad_norm_,
/// all `size` ranks' batches in one forward if the model allows it. In fp64.
Outcome oracle(const Subject& subject, const Schedule& schedule, int size);

/// Trains in one process on the batches of all `size` ranks, one after the other, with any
/// optimizer; returns the parameters by every name. `make` gets the distinct trainable parameters
/// and returns the function that performs a step; gradients are dropped after it.
using PlainStep = std::function<void()>;
std::map<std::string, at::Tensor> train_plainly(
    const Subject& subject, at::ScalarType dtype, const Schedule& schedule, int size,
    const std::function<PlainStep(const std::vector<at::Tensor>& parameters)>& make);

}  // namespace tessera::internal::testing
