#pragma once

#include <cstdint>

namespace tessera::internal {

/// Returns true if streaming stores are faster when each of `ranks` ranks of a host copies
/// `bytes_per_rank` at about the same time. They are faster only if the data that all ranks read
/// and write do not fit in the last-level cache together. If the data fit, ordinary stores are
/// better, because the next reader finds the copies in the cache.
bool streaming_pays(int64_t bytes_per_rank, int ranks);

/// Copies `bytes` bytes from `from` to `to` by streaming stores, which do not first read the
/// overwritten memory into the caches. Alignment and length are arbitrary. The two ranges must not
/// overlap. Other ranks see the result after the usual synchronisation, like that of an ordinary
/// copy. Makes an ordinary copy if the processor has no streaming stores. Local.
void copy_streaming(void* to, const void* from, int64_t bytes);

}  // namespace tessera::internal
