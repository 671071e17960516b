#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Returns the list of all algorithms. A new algorithm is a file and a line here.
const std::vector<const Algorithm*>& algorithms();

/// Returns the algorithm of these options; null if there is none.
const Algorithm* algorithm_of(const torch::optim::OptimizerOptions& options);

/// "AdamWOptions or ...": the types of options that there are algorithms for.
std::string known_options();

}  // namespace tessera::internal
