#pragma once

#include <cstdint>

namespace tessera::internal {

/// Local. Bytes of memory that this host can still give, swap included.
int64_t available_memory_bytes();

}  // namespace tessera::internal
