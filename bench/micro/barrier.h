#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// What ranks pay to meet: two with a core each, spinning and not, and four on whatever cores there
/// are.
void register_barriers(RankSets& rank_sets);
void play_barrier(ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
