#include "tessera/bench/micro/barrier.h"

#include <benchmark/benchmark.h>

namespace tessera::internal::bench {

void play_barrier(ProcessGroup& group, Laps& laps) {
  while (laps.next()) group.barrier("barrier");
}

void register_barriers(RankSets& rank_sets) {
  const auto add = [&rank_sets](const char* name, int ranks, Waiting waiting) {
    benchmark::RegisterBenchmark(name, [&rank_sets, ranks, waiting](benchmark::State& state) {
      rank_sets.of(ranks, waiting).play({Scene::Kind::kBarrier}, state);
    })->UseRealTime();
  };
  add("barrier/2_ranks", 2, Waiting::kByCores);
  add("barrier/2_ranks_without_spinning", 2, Waiting::kWithoutSpinning);
  add("barrier/4_ranks", 4, Waiting::kByCores);
}

}  // namespace tessera::internal::bench
