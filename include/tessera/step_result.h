#pragma once

#include <cstdint>

namespace tessera {

/// What one step did. Equal on all ranks. Under Options::asynchronous_step, step() returns the
/// result of the previous step(); the first call returns one with `committed` false.
struct StepResult {
  bool committed = false;  ///< true if the update was applied; false if the step was skipped, for
                           ///< non-finite gradients or weights that are all 0
  int64_t step = 0;        ///< number of updates applied so far, this one included
  double grad_norm = 0.0;  ///< global norm (Options::grad_norm_type) of the averaged gradient after
                           ///< clipping by value and before clipping by norm, without the loss
                           ///< scale; not finite if skipped
  double loss_scale = 1.0;  ///< in force for the backwards of this step
  double weight = 0.0;  ///< sum of BackwardOptions::weight over ranks and backwards; 0 without any
  int64_t used_parameters =
      0;  ///< trainable parameters that had a gradient on any rank and were updated
};

}  // namespace tessera
