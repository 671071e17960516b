#pragma once

#include <cstdint>
#include <vector>

namespace tessera::internal {

/// Which steps of a run are kept.
struct Retention {
  int64_t keep_last = 3;   ///< the newest; at least 1
  int64_t keep_every = 0;  ///< and all steps that are multiples of this; 0: no others
};

/// Returns the steps of `committed` (ascending) that `retention` does not keep, ascending.
std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& committed,
                                     const Retention& retention);

}  // namespace tessera::internal
