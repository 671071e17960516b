#pragma once

#include <cstdint>

namespace tessera {

/// Counts of gathers and frees of a model's units on this rank, if parameters are split.
struct GatherCounts {
  int64_t gathers = 0;  ///< units gathered, that is, made whole
  /// How many of the `gathers` were begun before the first operator needed the unit.
  int64_t prefetched = 0;
  int64_t frees = 0;  ///< units freed
  int64_t bytes = 0;  ///< bytes copied from other ranks
  int64_t unsharded_buffers_added =
      0;  ///< unsharded-parameter buffers beyond the two that the memory formula counts
};

}  // namespace tessera
