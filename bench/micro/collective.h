#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// The time of a collective, by operation, dtype, kind of memory, ranks and bytes of the whole
/// buffer (input of reduce_scatter, output of all_gather, in place or not). algbw: these bytes per
/// second; busbw: the bytes per second that every rank would have to send on a ring.
void register_collectives(RankSets& rank_sets);
void play_collective(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
