#pragma once

#include <cstdint>

namespace tessera {

/// Counts of gathers and frees of a model's units, if parameters are split. Local.
struct GatherCounts {
  int64_t gathers = 0;     ///< units gathered, that is, made whole
  int64_t prefetched = 0;  ///< of `gathers`, those begun before their first use
  int64_t frees = 0;       ///< units freed
  int64_t bytes = 0;       ///< copied from other ranks
  int64_t unsharded_buffers_added =
      0;  ///< unsharded-parameter buffers beyond the two that the memory formula counts
};

}  // namespace tessera
