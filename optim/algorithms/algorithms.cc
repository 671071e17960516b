#include "tessera/optim/algorithms/algorithms.h"

#include "tessera/optim/algorithms/adagrad.h"
#include "tessera/optim/algorithms/adam.h"
#include "tessera/optim/algorithms/adamw.h"
#include "tessera/optim/algorithms/lamb.h"
#include "tessera/optim/algorithms/lion.h"
#include "tessera/optim/algorithms/muon.h"
#include "tessera/optim/algorithms/rmsprop.h"
#include "tessera/optim/algorithms/sgd.h"
#include "tessera/optim/eight_bit/eight_bit.h"

namespace tessera::internal {

const std::vector<const Algorithm*>& algorithms() {
  static const std::vector<const Algorithm*> all = {
      &adamw_algorithm(),     &adam_algorithm(),    &sgd_algorithm(),  &lion_algorithm(),
      &adagrad_algorithm(),   &rmsprop_algorithm(), &muon_algorithm(), &lamb_algorithm(),
      &adamw8bit_algorithm(), &lion8bit_algorithm()};
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
    const bool is_last = algorithm == algorithms().back();
    names += (names.empty() ? "" : is_last ? " or " : ", ") + algorithm->options_name;
  }
  return names;
}

}  // namespace tessera::internal
