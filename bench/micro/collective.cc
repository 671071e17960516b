#include "tessera/bench/micro/collective.h"

#include <array>
#include <string>

#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>

#include "tessera/core/memory/private_memory.h"

namespace tessera::internal::bench {
namespace {

enum class Operation : int64_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllGatherInPlace
};
constexpr std::array<const char*, 5> kOperations = {"all_reduce", "reduce_scatter", "all_gather",
                                                    "broadcast", "all_gather_in_place"};

/// The memory of buffers: accessible to peers, or private memory that is copied through a staging
/// area.
enum class Memory : int64_t { kArena, kPrivate };
constexpr std::array<const char*, 2> kMemories = {"arena", "private"};

/// How often a buffer's bytes leave each rank on a ring, counted like nccl-tests.
double bus_factor(Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case Operation::kAllReduce:
      return 2 * others;
    case Operation::kBroadcast:
      return 1;
    default:
      return others;
  }
}

std::string size_name(int64_t bytes) {
  return bytes >= int64_t{1} << 20 ? std::to_string(bytes >> 20) + "MiB"
                                   : std::to_string(bytes >> 10) + "KiB";
}

void add(RankSets& rank_sets, Operation operation, at::ScalarType dtype, Memory memory, int ranks,
         int64_t bytes) {
  const std::string name = std::string(kOperations[static_cast<size_t>(operation)]) + '/' +
                           (dtype == at::kFloat ? "f32" : "bf16") + '/' +
                           kMemories[static_cast<size_t>(memory)] + '/' + std::to_string(ranks) +
                           "_ranks/" + size_name(bytes);
  benchmark::RegisterBenchmark(name.c_str(), [=, &rank_sets](benchmark::State& state) {
    rank_sets.of(ranks, Waiting::kByCores)
        .play({Scene::Kind::kCollective,
               {static_cast<int64_t>(operation), static_cast<int64_t>(dtype),
                static_cast<int64_t>(memory), bytes}},
              state);
    const auto rate = benchmark::Counter::kIsIterationInvariantRate;
    state.counters["algbw"] = benchmark::Counter(static_cast<double>(bytes), rate);
    state.counters["busbw"] =
        benchmark::Counter(static_cast<double>(bytes) * bus_factor(operation, ranks), rate);
  })->UseRealTime();
}

}  // namespace

void play_collective(const Scene& scene, ProcessGroup& group, Laps& laps) {
  const auto operation = static_cast<Operation>(scene.numbers[0]);
  const auto dtype = static_cast<at::ScalarType>(scene.numbers[1]);
  const auto memory = static_cast<Memory>(scene.numbers[2]);
  const int64_t numel = scene.numbers[3] / static_cast<int64_t>(c10::elementSize(dtype));

  const auto make = [&](int64_t of_numel) {
    at::Tensor buffer = memory == Memory::kArena ? group.allocate(of_numel, dtype)
                                                 : allocate_private(of_numel, dtype);
    return buffer.fill_(group.rank() + 1);
  };
  const at::Tensor whole = make(numel);
  const at::Tensor part = make(numel / group.size());
  const at::Tensor own = whole.narrow(0, group.rank() * part.numel(), part.numel());
  const auto run = [&] {
    switch (operation) {
      case Operation::kAllReduce:
        return group.all_reduce(whole, ReduceOp::kAvg)->wait();
      case Operation::kReduceScatter:
        return group.reduce_scatter(part, whole, ReduceOp::kAvg)->wait();
      case Operation::kAllGather:
        return group.all_gather(whole, part)->wait();
      case Operation::kBroadcast:
        return group.broadcast(whole, 0)->wait();
      case Operation::kAllGatherInPlace:
        return group.all_gather(whole, own)->wait();
    }
  };
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) run();
  while (laps.next()) run();
}

void register_collectives(RankSets& rank_sets) {
  constexpr std::array<int64_t, 5> kBytes = {int64_t{1} << 10, int64_t{64} << 10, int64_t{1} << 20,
                                             int64_t{16} << 20, int64_t{64} << 20};
  for (size_t operation = 0; operation < kOperations.size(); ++operation) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const Memory memory : {Memory::kArena, Memory::kPrivate}) {
        for (const int ranks : {2, 4}) {
          for (const int64_t bytes : kBytes) {
            add(rank_sets, static_cast<Operation>(operation), dtype, memory, ranks, bytes);
          }
        }
      }
    }
  }
}

}  // namespace tessera::internal::bench
