#pragma once

#include <cstdint>

#include "tessera/optim/formulas/loss_scale_rule.h"
#include "tessera/options.h"

namespace tessera::internal {

/// The schedule of a dynamic loss scale, as torch.amp.GradScaler: it shrinks at once after a step
/// whose gradients were not finite and grows after enough good steps in a row. Local; equal on all
/// ranks because the vote decides which steps overflowed.
class LossScaler {
 public:
  /// Throws c10::Error unless the values are in the ranges that LossScale states.
  explicit LossScaler(LossScale schedule);

  /// Returns the present factor of losses; is_fp32_factor() (core/numbers).
  double scale() const { return state_.scale; }
  /// Steps without overflow since the scale last changed.
  int64_t good_steps() const { return state_.good_steps; }

  /// Called after a step, which was dropped if `overflowed`. An overflow multiplies the scale by
  /// backoff, the growth_interval-th good step in a row by growth; neither leaves the range of
  /// normal fp32 numbers.
  void update(bool overflowed);

  /// Continues a run. Throws c10::Error unless is_fp32_factor(scale) and good_steps is at least 0.
  void load(double scale, int64_t good_steps);

 private:
  LossScale schedule_;
  LossScaleState state_;
};

}  // namespace tessera::internal
