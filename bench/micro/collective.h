#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// How long a collective takes, by operation, dtype, kind of memory, ranks and bytes of the whole
/// buffer (input of reduce_scatter, output of all_gather, in place or not). algbw: those bytes
/// per second; busbw: what every rank would have to send for it on a ring.
void register_collectives(RankSets& rank_sets);
void play_collective(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
