#pragma once

#include "tessera/collective.h"
#include "tessera/core/comm/shm/exchange.h"

namespace tessera::internal::shm {

/// Algorithms (algorithms.h) that move data between ranks without combining it.
void gather(Exchange& exchange, const Collective& collective);
void scatter(Exchange& exchange, const Collective& collective);
/// With counts it is two calls: in the first the ranks show each other theirs.
void all_to_all(Exchange& exchange, const Collective& collective);

}  // namespace tessera::internal::shm
