#pragma once

#include <cmath>

namespace tessera::internal {

/// Whether gradients may be multiplied with `value` or divided by it in fp32, the narrowest dtype
/// that they are summed in: a normal number of fp32 above 0, whose inverse is finite.
inline bool is_fp32_factor(double value) {
  return value > 0.0 && std::isnormal(static_cast<float>(value));
}

}  // namespace tessera::internal
