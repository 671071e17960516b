#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "tessera/core/device_code.h"
#include "tessera/core/step/clip_factor.h"
#include "tessera/core/step/exact_digits.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/power.h"
#include "tessera/optim/cuda/walk.h"

namespace tessera::cuda {

/// tessera_cuda_decide, for the one thread that does it.
TESSERA_DEVICE_CODE inline StepVerdict decide_body(const int64_t* words, int64_t non_finite,
                                                   double loss_scale, double max_norm) {
  int64_t own[kExactWords];  // exact_value uses them up
  for (size_t i = 0; i < kExactWords; ++i) own[i] = words[i];
  const double squares = exact_value(own);
  const double norm = std::sqrt(squares) / loss_scale;
  const bool is_finite = non_finite == 0 && exact_is_finite(squares);
  StepVerdict verdict = {};
  verdict.grad_norm = norm;
  if (!is_finite && exact_is_finite(norm)) {
    verdict.grad_norm = std::numeric_limits<double>::quiet_NaN();
  }
  verdict.gradient_scale = is_finite ? clip_factor(norm, max_norm) / loss_scale : 0.0;
  verdict.loss_scale = loss_scale;
  verdict.non_finite = non_finite;
  verdict.applies = is_finite ? 1 : 0;
  return verdict;
}

/// tessera_cuda_advance for one thread of the launch.
TESSERA_DEVICE_CODE inline void advance_body(const AdvanceArguments& arguments, Worker thread) {
  const StepVerdict& verdict = *arguments.verdict;
  for (int64_t i = thread.index; i < arguments.count; i += thread.count) {
    ParameterUpdate& update = arguments.updates[i];
    update.applies = verdict.applies != 0 && arguments.used[i] != 0 ? 1 : 0;
    if (update.applies == 0) continue;
    const int64_t step = ++arguments.steps[i];
    const AdamwHyperParameters& group = arguments.groups[arguments.group_of[i]];
    update.scalars = adamw_scalars<float>(adamw_coefficients(
        group, power_of(group.beta1, step), power_of(group.beta2, step), verdict.gradient_scale));
  }
}

}  // namespace tessera::cuda
