#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// The cost of gathering a unit and freeing another one, caused by operators that use two units in
/// turn, on both ranks at once. Varies the bytes of the unit and its number of parameters; the
/// latter must not matter.
void register_gathers(RankSets& rank_sets);
void play_gather(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
