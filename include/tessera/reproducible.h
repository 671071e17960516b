#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Between which runs gradients have the same bits.
enum class Reproducible : uint8_t {
  kOneWorldSize,  ///< runs on the same number of ranks: sums run in rank order, then over
                  ///< micro-steps
  kAnyWorldSize,  ///< runs on any power-of-two number of ranks: sums follow one binary tree over
                  ///< all micro-batches
};

/// Returns "one world size" or "any world size".
std::string_view to_string(Reproducible reproducible);

}  // namespace tessera
