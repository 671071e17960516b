#pragma once

#include <cstdint>

namespace tessera {

/// What one step did. Equal on all ranks. Under Options::asynchronous_step, step() returns the
/// result of the previous step(); the first call returns one with `committed` false.
struct StepResult {
  /// True if the update was applied; false if the step was skipped, because gradients were not
  /// finite or all weights were 0.
  bool committed = false;
  int64_t step = 0;        ///< number of updates applied so far, this one included
  double grad_norm = 0.0;  ///< global norm (Options::grad_norm_type) of the averaged gradient after
                           ///< clipping by value and before clipping by norm, without the loss
                           ///< scale; not finite if skipped
  double loss_scale = 1.0;  ///< the loss scale that the backwards of this step used
  /// Sum of BackwardOptions::weight over ranks and backwards; 0 if no backward set a weight.
  double weight = 0.0;
  int64_t used_parameters =
      0;  ///< number of trainable parameters that had a gradient on any rank and were updated
};

}  // namespace tessera
