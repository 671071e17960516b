#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace tessera {

/// The longest time-out, 24 days: the largest number of milliseconds that poll() takes. Adding it
/// to the current time does not overflow.
inline constexpr std::chrono::milliseconds kMaxTimeOut(std::numeric_limits<int>::max());

/// Returns `time_out`, but at most kMaxTimeOut. Applied to every time-out that a user passes.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds time_out) {
  return std::min(time_out, kMaxTimeOut);
}

}  // namespace tessera
