#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "tessera/bench/micro/barrier.h"
#include "tessera/bench/micro/collective.h"
#include "tessera/bench/micro/gather.h"
#include "tessera/bench/micro/operators.h"
#include "tessera/bench/micro/ranks.h"

// micro_bench [--benchmark_filter=...] [--benchmark_min_time=0.1] ...
// Times mean something only on a machine that does nothing else.
int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (tessera::internal::bench::is_peer(argc, argv))
    return tessera::internal::bench::live_as_peer(argv);
  tessera::internal::bench::RankSets rank_sets;
  tessera::internal::bench::register_collectives(rank_sets);
  tessera::internal::bench::register_barriers(rank_sets);
  tessera::internal::bench::register_gathers(rank_sets);
  tessera::internal::bench::register_operators(rank_sets);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
