#pragma once

#include <string_view>
#include <utility>

#include <torch/torch.h>

#include "tessera/muon_options.h"
#include "tessera/optimizer_plan.h"

namespace tessera::internal::testing {

inline bool is_matrix_of(std::string_view, const at::Tensor& parameter) {
  return parameter.dim() == 2;
}

/// Muon for matrices, `others` for the other parameters.
inline OptimizerPlan muon_and(AlgorithmOptions others, const MuonOptions& muon) {
  return {std::move(others), {{"matrices", &is_matrix_of, muon}}};
}

}  // namespace tessera::internal::testing
