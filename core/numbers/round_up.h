#pragma once

#include <cstdint>

namespace tessera::internal {

/// Returns the smallest multiple of `unit` (> 0) that is at least `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Returns the first address at or after `memory` that is a multiple of `unit` bytes.
inline char* round_up(char* memory, int64_t unit) {
  const auto misfit =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(unit));
  return misfit == 0 ? memory : memory + (unit - misfit);
}

}  // namespace tessera::internal
