#pragma once

#include <cmath>

#include "tessera/core/numbers/device_code.h"

namespace tessera::internal {

/// Returns the factor that scales gradients of norm `norm` down to `max_norm`: min(1, max_norm /
/// (norm + 1e-6)), as in torch's clip_grad_norm_. A NaN norm gives NaN.
TESSERA_DEVICE_CODE inline double clip_factor(double norm, double max_norm) {
  if (std::isinf(max_norm)) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1.0 ? 1.0 : factor;  // NaN stays NaN
}

}  // namespace tessera::internal
