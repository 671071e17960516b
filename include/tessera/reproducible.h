#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Which runs give gradients with the same bits.
enum class Reproducible : uint8_t {
  /// Runs on the same number of ranks: gradients are summed over ranks in rank order, then over
  /// micro-steps.
  kOneWorldSize,
  /// Runs on any power-of-two number of ranks: gradients are summed along one binary tree over all
  /// micro-batches.
  kAnyWorldSize,
};

/// Returns "one world size" or "any world size".
std::string_view to_string(Reproducible reproducible);

}  // namespace tessera
