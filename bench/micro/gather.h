#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// The cost of gathering a unit and freeing another one, caused by operators that use two units in
/// turn, on both ranks at once. By bytes of the unit and by its number of parameters, which must
/// not matter.
void register_gathers(RankSets& rank_sets);
void play_gather(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
