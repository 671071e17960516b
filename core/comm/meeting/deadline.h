#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace tessera::internal {

/// When to stop waiting.
using Deadline = std::chrono::steady_clock::time_point;

/// Returns the milliseconds until `deadline`, as poll() takes them: rounded up, 0 if it has passed.
inline int milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

}  // namespace tessera::internal
