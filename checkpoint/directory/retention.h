#pragma once

#include <cstdint>
#include <vector>

namespace tessera::internal {

/// The rule for which steps of a run to keep.
struct Retention {
  int64_t keep_last = 3;   ///< how many of the newest steps to keep; at least 1
  int64_t keep_every = 0;  ///< also keeps the steps whose number is a multiple of this; 0: none
};

/// Returns the steps of `committed` (ascending) that `retention` does not keep, ascending.
std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& committed,
                                     const Retention& retention);

}  // namespace tessera::internal
