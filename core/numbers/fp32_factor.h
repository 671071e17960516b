#pragma once

#include <cmath>

namespace tessera::internal {

/// Returns true if gradients may be multiplied or divided by `value` in fp32, the narrowest dtype
/// in which they are summed. For that, `value` must be a normal fp32 number above 0 with a finite
/// inverse.
inline bool is_fp32_factor(double value) {
  return value > 0.0 && std::isnormal(static_cast<float>(value));
}

}  // namespace tessera::internal
