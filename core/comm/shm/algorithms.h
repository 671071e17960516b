#pragma once

#include "tessera/collective.h"
#include "tessera/core/comm/shm/exchange.h"

namespace tessera::internal::shm {

/// Takes part in one collective, in the ranks' memory. Blocks; throws CommError.
using Algorithm = void (*)(Exchange& exchange, const Collective& collective);

/// The algorithm of `op`; null if there is none.
///
/// Bytes: for all_reduce each rank reads numel / size() elements of every rank and writes them to
/// every rank; for reduce_scatter it reads its slice of every rank's input; for all_gather it
/// copies every other rank's input, for broadcast the root's.
Algorithm algorithm_of(Op op);

}  // namespace tessera::internal::shm
