#include "tessera/examples/gpt/rate_curve.h"

#include <algorithm>
#include <cmath>

namespace gpt {

double RateCurve::at(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const auto fall_steps = static_cast<double>(std::max<int64_t>(1, steps - 1 - warmup_steps));
  const double share = std::min(1.0, static_cast<double>(step - warmup_steps) / fall_steps);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(M_PI * share));
}

}  // namespace gpt
