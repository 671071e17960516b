#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Returns the list of all algorithms. To add an algorithm, add a file and a line in this list.
const std::vector<const Algorithm*>& algorithms();

/// Returns the algorithm for options of this type; null if there is none.
const Algorithm* algorithm_of(const torch::optim::OptimizerOptions& options);

/// Returns the types of options that have algorithms: "AdamWOptions or ...".
std::string known_options();

}  // namespace tessera::internal
