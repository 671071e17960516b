#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// The cost of a barrier: two ranks with a core each, spinning and not, and four ranks on the
/// available cores.
void register_barriers(RankSets& rank_sets);
void play_barrier(ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
