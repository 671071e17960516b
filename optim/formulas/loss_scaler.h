#pragma once

#include <cstdint>

#include "tessera/optim/formulas/loss_scale_rule.h"
#include "tessera/options.h"

namespace tessera::internal {

/// A dynamic loss scale, as in torch.amp.GradScaler: the scale shrinks at once after a step whose
/// gradients were not finite, and grows after enough good steps in a row. Local; equal on all ranks
/// because the vote decides which steps overflowed.
class LossScaler {
 public:
  /// Throws c10::Error unless the values are in the ranges that LossScale states.
  explicit LossScaler(LossScale schedule);

  /// Returns the factor by which losses are multiplied now; is_fp32_factor() (core/numbers) holds
  /// for it.
  double scale() const { return state_.scale; }
  /// Steps without overflow since the scale last changed.
  int64_t good_steps() const { return state_.good_steps; }

  /// Updates the scale after a step. If the step overflowed, and was therefore dropped, the scale
  /// is multiplied by backoff. After growth_interval good steps in a row it is multiplied by
  /// growth. The scale always stays a normal fp32 number.
  void update(bool overflowed);

  /// Restores a saved scale and count. Throws c10::Error unless is_fp32_factor(scale) and
  /// good_steps is at least 0.
  void load(double scale, int64_t good_steps);

 private:
  LossScale schedule_;
  LossScaleState state_;
};

}  // namespace tessera::internal
