#pragma once

#include <cstdint>

namespace tessera::internal {

/// Returns true if streaming stores pay when each of `ranks` ranks of a host copies
/// `bytes_per_rank` at about the same time: only if all that they read and write does not fit in
/// the last-level cache. Otherwise the next reader finds the copies in the cache.
bool streaming_pays(int64_t bytes_per_rank, int ranks);

/// Copies `bytes` from `from` to `to`, which do not overlap, of any alignment and length, without
/// first reading the overwritten memory into the caches. Other ranks see the copy as an ordinary
/// one: after whatever synchronises. An ordinary copy if the processor has no such stores. Local.
void copy_streaming(void* to, const void* from, int64_t bytes);

}  // namespace tessera::internal
