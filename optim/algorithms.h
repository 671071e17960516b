#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm.h"

namespace tessera::internal {

/// The one list of what parameters can be updated by. A new algorithm is a file and a line here.
const std::vector<const Algorithm*>& algorithms();

/// Whose options these are; null if nobody's.
const Algorithm* algorithm_of(const torch::optim::OptimizerOptions& options);

/// "AdamWOptions or ...": the types of options that there are algorithms for.
std::string known_options();

}  // namespace tessera::internal
