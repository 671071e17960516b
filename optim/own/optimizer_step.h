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
/// `values` requires grad and has one, both in memory of their own kind, which the optimizer may
/// write. `kept_states`: by state of the form, the memory that it is kept in, in which it is handed
/// over unless this is the first update; undefined where one is not kept. Throws c10::Error where
/// the optimizer makes a state that is not kept, or another one than its form says, or drops one,
/// and whatever it throws itself. Local.
void run_optimizer_step(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                        int64_t step, const at::Tensor& values,
                        const std::vector<at::Tensor>& kept_states);

}  // namespace tessera::internal
