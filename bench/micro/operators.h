#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// What small operators cost beside an engine: without one, beside one whose parameters are never
/// split (must cost the same), beside one whose units are free (each operator is observed) and
/// beside one whose units are all held whole. On tensors that are no parameters, on a parameter,
/// and as the forward of a chain of layers, each a unit of its own.
void register_operators(RankSets& rank_sets);
void play_operators(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
