#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// Runs a user's optimizer for update number `step` of one tensor. Note [A user's optimizer] in
/// optimizer_update.h.
///
/// `values` requires grad and has a gradient; the optimizer may write both. `kept_states` has one
/// tensor for each state of the form: the memory in which the state is kept, or an undefined tensor
/// if it is not kept. The optimizer gets these tensors in every update but the first. Throws
/// c10::Error if the optimizer makes a state that is not kept, makes one whose sizes or dtype
/// differ from the kept memory's, or drops one. Rethrows exceptions of the optimizer. Local.
void run_optimizer_step(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                        int64_t step, const at::Tensor& values,
                        const std::vector<at::Tensor>& kept_states);

}  // namespace tessera::internal
