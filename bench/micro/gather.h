#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// What it costs to gather a unit and free another one, as operators that use two units in turn
/// make it happen, on both ranks at once. By bytes of the unit and by the number of parameters in
/// it, which must not matter.
void register_gathers(RankSets& rank_sets);
void play_gather(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
