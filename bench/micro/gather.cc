#include "tessera/bench/micro/gather.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>
#include <torch/types.h>

#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/fsdp/gathered_units.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal::bench {
namespace {

constexpr size_t kUnits = 2;

ParameterTable parameters_of_units(int64_t parameters, int64_t unit_numel) {
  std::vector<NamedTensor> named;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    for (int64_t i = 0; i < parameters; ++i) {
      named.push_back({std::to_string(unit) + '.' + std::to_string(i),
                       torch::zeros({unit_numel / parameters}).set_requires_grad(true)});
    }
  }
  return ParameterTable(std::move(named));
}

std::vector<UnitPlan::Membership> memberships(int64_t parameters) {
  std::vector<UnitPlan::Membership> units;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    units.push_back({"unit " + std::to_string(unit), {}});
    for (int64_t i = 0; i < parameters; ++i) {
      units.back().parameters.push_back(unit * static_cast<size_t>(parameters) +
                                        static_cast<size_t>(i));
    }
  }
  return units;
}

}  // namespace

void play_gather(const Scene& scene, ProcessGroup& group, Laps& laps) {
  const int64_t parameters = scene.numbers[0];
  const int64_t numel = scene.numbers[1] / static_cast<int64_t>(sizeof(float));
  const int ranks = group.size();

  const ParameterTable table = parameters_of_units(parameters, numel);
  const UnitPlan plan(table, memberships(parameters), ranks);
  const SliceMap slices({ranks, ranks, ranks}, ranks, group.rank());
  MemoryMeter meter;
  FlatParameters flat(table, plan, Residence::kSplit,
                      own_memory(plan, slices, Residence::kSplit,
                                 [&group](int64_t of_numel, at::ScalarType dtype) {
                                   return group.allocate(of_numel, dtype);
                                 }),
                      group.device(), meter);
  GatheredUnits::Setting setting;
  setting.ranks_after_forward = ranks;
  setting.is_inside_backward = [] { return false; };
  const auto units = GatheredUnits::make({.group = group,
                                          .gathering = nullptr,
                                          .plan = plan,
                                          .table = table,
                                          .slices = slices,
                                          .flat = flat,
                                          .meter = meter,
                                          .trace = nullptr},
                                         setting);
  group.barrier("shards are there");

  const auto use = [&units](size_t unit) {
    units->target(unit).pin(AccessTarget::Use::kRead).unpin(AccessTarget::Use::kRead);
  };
  for (size_t unit = 0; unit < kUnits; ++unit) use(unit);
  size_t next = 0;
  while (laps.next()) {
    use(next);
    next = 1 - next;
  }
}

void register_gathers(RankSets& rank_sets) {
  const auto add = [&rank_sets](const std::string& name, int64_t parameters, int64_t bytes) {
    benchmark::RegisterBenchmark(name.c_str(), [=, &rank_sets](benchmark::State& state) {
      rank_sets.of(2, Waiting::kByCores).play({Scene::Kind::kGather, {parameters, bytes}}, state);
      state.counters["gathered"] = benchmark::Counter(
          static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
    })->UseRealTime();
  };
  constexpr int64_t kKib = 1024;
  for (const int64_t parameters : {1, 16, 256}) {
    add("gather_free/64KiB/" + std::to_string(parameters) + "_parameters", parameters, 64 * kKib);
  }
  add("gather_free/4KiB/16_parameters", 16, 4 * kKib);
  for (const int64_t mib : {1, 4, 16, 64}) {
    add("gather_free/" + std::to_string(mib) + "MiB/16_parameters", 16, mib * kKib * kKib);
  }
}

}  // namespace tessera::internal::bench
