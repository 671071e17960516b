#pragma once

#include <cstdint>
#include <limits>

#include "tessera/core/numbers/device_code.h"

namespace tessera::internal {

/// A dynamic loss scale between two steps.
struct LossScaleState {
  double scale;        ///< what losses are multiplied with; a normal number of fp32 above 0
  int64_t good_steps;  ///< steps without overflow since the scale last changed
};

/// The fields of LossScale that say how the scale changes.
struct LossScaleRule {
  double growth;
  double backoff;
  int64_t growth_interval;
};

/// Returns the state after a step. If the step overflowed, and was therefore dropped, the scale is
/// multiplied by backoff. After growth_interval good steps in a row it is multiplied by growth. The
/// scale always stays a normal fp32 number.
TESSERA_DEVICE_CODE inline LossScaleState next_loss_scale(const LossScaleState& now,
                                                          const LossScaleRule& rule,
                                                          bool overflowed) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  constexpr double kSmallest = std::numeric_limits<float>::min();
  if (overflowed) {
    const double shrunk = now.scale * rule.backoff;
    return {shrunk < kSmallest ? kSmallest : shrunk, 0};
  }
  if (now.good_steps + 1 < rule.growth_interval) return {now.scale, now.good_steps + 1};
  const double grown = now.scale * rule.growth;
  return {grown <= kLargest ? grown : now.scale, 0};
}

}  // namespace tessera::internal
