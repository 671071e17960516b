#pragma once

#include "tessera/bench/micro/ranks.h"
#include "tessera/bench/micro/scene.h"

namespace tessera::internal::bench {

/// The cost of small operators: without an engine, with one whose parameters are never split (must
/// cost the same), with one whose units are free (each operator is observed), and with one whose
/// units are all held whole. Measured on tensors that are not parameters, on a parameter, and as
/// the forward of a chain of layers, each its own unit.
void register_operators(RankSets& rank_sets);
void play_operators(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
