#pragma once

#include <cstdint>

namespace tessera::internal {

/// Whether streaming stores pay when each of `ranks` ranks of a host copies `bytes_per_rank` at
/// about the same time: only if everything that they read and write together does not fit in the
/// last-level cache. Otherwise the next reader finds the copies in the cache.
bool streaming_pays(int64_t bytes_per_rank, int ranks);

/// Local. Copies `bytes` from `from` to `to`, which do not overlap, of any alignment and length,
/// without reading the memory that is overwritten into the caches first. The copy is visible to
/// other ranks as an ordinary one is: through whatever synchronises afterwards. Where the processor
/// has no such stores, an ordinary copy.
void copy_streaming(void* to, const void* from, int64_t bytes);

}  // namespace tessera::internal
