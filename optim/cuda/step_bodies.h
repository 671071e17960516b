#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "tessera/core/numbers/device_code.h"
#include "tessera/core/numbers/exact_digits.h"
#include "tessera/core/step/clip_factor.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/walk.h"

namespace tessera::internal::cuda {

/// Returns one thread's share of the number of elements that are not finite.
TESSERA_DEVICE_CODE inline int64_t non_finite_share(const DecideArguments& arguments,
                                                    Worker thread) {
  int64_t sum = 0;
  for (int64_t i = thread.index; i < arguments.parameters; i += thread.count) {
    sum += arguments.words[kNonFiniteAt + i];
  }
  return sum;
}

/// Returns true if the ranks' hashes are equal, judging by the sums of pairs (kAgreementAt).
TESSERA_DEVICE_CODE inline bool is_agreed(const int64_t* words, int64_t world_size) {
  for (int piece = 0; piece < kAgreementPieces; ++piece) {
    const int64_t sum = words[kAgreementAt + 2 * piece];
    const int64_t squares = words[kAgreementAt + 2 * piece + 1];
    if (world_size * squares != sum * sum) return false;
  }
  return true;
}

/// Returns the outcome that tessera_cuda_decide stores. One thread calls this; `non_finite` is the
/// sum of all threads' non_finite_share().
TESSERA_DEVICE_CODE inline StepOutcome decide_body(const DecideArguments& arguments,
                                                   int64_t non_finite) {
  int64_t own[kExactWords];  // a copy, because exact_value() changes it
  for (size_t i = 0; i < kExactWords; ++i) own[i] = arguments.words[kSquaresAt + i];
  const double squares = exact_value(own);
  const double loss_scale = arguments.loss_scale == nullptr ? 1.0 : arguments.loss_scale->scale;
  const double gradient_scale = loss_scale * arguments.divisor;
  const double norm = std::sqrt(squares) / gradient_scale;
  const bool is_finite = non_finite == 0 && exact_is_finite(squares);
  StepOutcome outcome = {};
  outcome.grad_norm = norm;
  if (!is_finite && exact_is_finite(norm)) {
    outcome.grad_norm = std::numeric_limits<double>::quiet_NaN();
  }
  outcome.loss_scale = loss_scale;
  outcome.non_finite = non_finite;
  outcome.refusals = arguments.words[kRefusalsAt];
  outcome.agrees = is_agreed(arguments.words, arguments.world_size) ? 1 : 0;
  outcome.applies = is_finite && outcome.refusals == 0 && outcome.agrees != 0 ? 1 : 0;
  if (outcome.applies != 0) {
    outcome.gradient_scale = clip_factor(norm, arguments.max_norm) / gradient_scale;
  }
  return outcome;
}

/// Returns the loss scale after tessera_cuda_update_loss_scale. If a rank refused the step or ranks
/// disagree, the scale stays, because such a step says nothing about gradients.
TESSERA_DEVICE_CODE inline LossScaleState loss_scale_body(const LossScaleState& state,
                                                          const LossScaleRule& rule,
                                                          const StepOutcome& outcome) {
  if (outcome.refusals != 0 || outcome.agrees == 0) return state;
  return next_loss_scale(state, rule, /*overflowed=*/outcome.applies == 0);
}

}  // namespace tessera::internal::cuda
