#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::bench {

/// What two ranks pay to meet: with a core each, awake or asleep, and four on whatever cores there
/// are.
void register_barriers(Crews& crews);
void play_barrier(ProcessGroup& group, Laps& laps);

}  // namespace tessera::bench
