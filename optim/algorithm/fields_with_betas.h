#pragma once

#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Returns the hyper-parameters of AdamOptions, or of another options type with the same names,
/// which may lack eps and amsgrad.
template <typename Options>
std::vector<HyperParameterField> fields_with_betas() {
  using Field = HyperParameterField;
  std::vector<Field> fields = {
      Field::number<Options>(
          "lr", [](auto& of) -> auto& { return of.lr(); }),
      Field::number<Options>(
          "beta1", [](auto& of) -> auto& { return std::get<0>(of.betas()); }, /*end=*/1),
      Field::number<Options>(
          "beta2", [](auto& of) -> auto& { return std::get<1>(of.betas()); }, /*end=*/1)};
  if constexpr (requires(Options of) { of.eps(); }) {
    fields.push_back(Field::number<Options>(
        "eps", [](auto& of) -> auto& { return of.eps(); }));
  }
  fields.push_back(Field::number<Options>(
      "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }));
  if constexpr (requires(Options of) { of.amsgrad(); }) {
    fields.push_back(Field::toggle<Options>(
        "amsgrad", [](auto& of) -> auto& { return of.amsgrad(); }, /*chooses_states=*/true));
  }
  return fields;
}

/// Returns true if the options switch AMSGrad on. For StateField::is_used.
template <typename Options>
bool is_amsgrad(const torch::optim::OptimizerOptions& options) {
  return static_cast<const Options&>(options).amsgrad();
}

}  // namespace tessera::internal
