#pragma once

#include <cstdint>

namespace tessera::internal {

/// Returns true if streaming stores are faster when each of `ranks` ranks of a host copies
/// `bytes_per_rank` at about the same time. That is so only if the data they read and write do not
/// all fit in the last-level cache; otherwise the next reader finds the copies in the cache.
bool streaming_pays(int64_t bytes_per_rank, int ranks);

/// Copies `bytes` bytes from `from` to `to`, of any alignment and length, without first reading the
/// overwritten memory into the caches. The two must not overlap. Other ranks see the result after
/// the usual synchronisation, like that of an ordinary copy. Makes an ordinary copy if the
/// processor has no such stores. Local.
void copy_streaming(void* to, const void* from, int64_t bytes);

}  // namespace tessera::internal
