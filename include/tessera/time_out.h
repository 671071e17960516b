#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace tessera {

/// The longest time-out there is, 24 days: what fits into the int of milliseconds that poll()
/// takes. Added to a clock's time it does not overflow, ours or c10d's.
inline constexpr std::chrono::milliseconds kLongestTimeOut(std::numeric_limits<int>::max());

/// `time_out` as everything that waits takes it: at most kLongestTimeOut. Everyone who takes one
/// from a user begins with it.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds time_out) {
  return std::min(time_out, kLongestTimeOut);
}

}  // namespace tessera
