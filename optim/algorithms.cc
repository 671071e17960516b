#include "tessera/optim/algorithms.h"

#include "tessera/optim/adamw.h"
#include "tessera/optim/sgd.h"

namespace tessera::internal {

const std::vector<const Algorithm*>& algorithms() {
  static const std::vector<const Algorithm*> all = {&adamw_algorithm(), &sgd_algorithm()};
  return all;
}

const Algorithm* algorithm_of(const torch::optim::OptimizerOptions& options) {
  for (const Algorithm* algorithm : algorithms()) {
    if (algorithm->accepts(options)) return algorithm;
  }
  return nullptr;
}

std::string known_options() {
  std::string names;
  for (const Algorithm* algorithm : algorithms()) {
    names += (names.empty() ? "" : " or ") + algorithm->options_name;
  }
  return names;
}

}  // namespace tessera::internal
