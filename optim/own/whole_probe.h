#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm/whole_state.h"
#include "tessera/optim/own/elementwise_probe.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// Returns the states of a parameter of `sizes`. If the form gives no sizes for a state, the state
/// has the parameter's sizes, and is listed only if the optimizer keeps it according to `in_use`.
/// Throws c10::Error for negative sizes, and what the form throws.
std::vector<WholeState> whole_states_of(const ErasedForm& form,
                                        const torch::optim::OptimizerOptions& options,
                                        at::IntArrayRef sizes, const StatesInUse& in_use);

/// Like find_states(), for an optimizer given to whole_tensor().
StatesInUse find_whole_states(const ErasedForm& form,
                              const torch::optim::OptimizerOptions& options);

/// Tests whether an update depends only on one parameter and on what the form names, as
/// whole_tensor() requires. Returns "got X, expected Y; do Z" if not, else "". `states`: a result
/// of find_whole_states() without a problem. Local; leaves the CPU's default generator as it was.
std::string probe_whole_tensor(const ErasedForm& form,
                               const torch::optim::OptimizerOptions& options,
                               const StatesInUse& states);

}  // namespace tessera::internal
