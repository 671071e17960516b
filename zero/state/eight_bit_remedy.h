#pragma once

#include <string>

namespace tessera::internal {

/// What to do where a state has moments in the masters' dtype and the run has them in 8 bits, or
/// the other way round, as `problems` of its entries show: a line to put before them, as long lists
/// are cut; "" where neither is so.
std::string eight_bit_remedy(const std::string& problems);

}  // namespace tessera::internal
