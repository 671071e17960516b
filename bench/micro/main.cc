#include <cstdio>

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "tessera/bench/micro/barrier.h"
#include "tessera/bench/micro/collective.h"
#include "tessera/bench/micro/gather.h"
#include "tessera/bench/micro/operators.h"
#include "tessera/bench/micro/ranks.h"
#include "tessera/examples/program/command_line.h"

namespace {

void print_help() {
  std::printf(
      "usage: micro_bench [--flag=value ...]\n"
      "micro_bench times small parts of the library.\n\n"
      "  micro_bench --benchmark_filter=barrier --benchmark_min_time=0.1\n\n"
      "flags, of Google Benchmark (defaults: every benchmark, 0.5 s each, a table):\n\n");
  benchmark::PrintDefaultHelp();
}

}  // namespace

// micro_bench [--benchmark_filter=...] [--benchmark_min_time=0.1] ...
// Times are meaningful only on an otherwise idle machine.
int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (tessera::internal::bench::is_peer(argc, argv))
    return tessera::internal::bench::live_as_peer(argv);
  tessera::internal::bench::RankSets rank_sets;
  tessera::internal::bench::register_collectives(rank_sets);
  tessera::internal::bench::register_barriers(rank_sets);
  tessera::internal::bench::register_gathers(rank_sets);
  tessera::internal::bench::register_operators(rank_sets);
  benchmark::Initialize(&argc, argv, print_help);
  if (argc > 1) {
    std::fprintf(stderr,
                 "micro_bench: got '%s', expected flags of Google Benchmark; micro_bench "
                 "--help lists them\n",
                 argv[1]);
    return program::kUsageError;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
