#pragma once

#include <cstdint>

namespace gpt {

/// A learning rate that rises linearly over the first `warmup_steps` and then falls to `floor`
/// along half a cosine.
struct RateCurve {
  double peak = 1e-3;
  double floor = 1e-4;
  int64_t warmup_steps = 20;
  int64_t steps = 400;  ///< of the whole training

  /// The rate of step number `step`, counted from 0; `floor` from the last step on.
  double at(int64_t step) const;
};

}  // namespace gpt
