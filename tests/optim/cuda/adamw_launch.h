#pragma once

#include <vector>

#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/rules.h"

// The kernels' arguments if all parameters are AdamW's, without AMSGrad.
namespace tessera::internal::cuda {

inline GroupNumbers numbers_of(const AdamHyperParameters& group) {
  GroupNumbers numbers = {};
  numbers.rule = Rule::kAdamw;
  write_bytes(numbers.numbers, group);
  return numbers;
}

inline ParameterUpdate update_by(const AdamwCoefficients& coefficients) {
  ParameterUpdate update = {};
  write_bytes(update.scalars, AdamwRule::Scalars{adamw_scalars<float>(coefficients), false});
  update.applies = 1;
  return update;
}

/// Both moments have the offsets of the values.
inline std::vector<StatePlaces> places_of(const std::vector<Piece>& pieces) {
  std::vector<StatePlaces> places;
  for (const Piece& piece : pieces) places.push_back({{piece.begin, piece.begin, -1}});
  return places;
}

}  // namespace tessera::internal::cuda
