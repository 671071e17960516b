// Engine::set_trainable() on GPUs: units, states of kernels and pinned memory are rebuilt, and
// training continues as on the CPU.
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

TrainOptions changing_options() {
  TrainOptions options;
  options.after_step = [](Engine& engine, int step) {
    engine.set_trainable([step](std::string_view name) {
      const bool is_weight = name.ends_with("weight");
      return step % 3 == 2 || is_weight == (step % 3 == 0);
    });
  };
  return options;
}

struct GpuChange {
  Configuration configuration;
  int world;
  Decorate (*decorate)();
};

std::vector<GpuChange> gpu_changes() {
  std::vector<GpuChange> all;
  for (const Configuration& configuration : named_configurations()) {
    all.push_back({configuration, 1, &alone});
    all.push_back({configuration, 2, &staged_over_host});
    all.push_back({configuration, 3, &over_nccl});
    Configuration waiting = configuration;
    waiting.name += "_waiting";
    waiting.asynchronous_step = false;
    all.push_back({waiting, 2, &over_nccl});
    Configuration offloading = configuration;
    offloading.name += "_offloading";
    offloading.offload = Offload::kOptimizer;
    all.push_back({offloading, 2, &staged_over_host});
  }
  Configuration parameters = configuration_of(Strategy::kZero3);
  parameters.name += "_offloading_all";
  parameters.offload = Offload::kParameters;
  all.push_back({parameters, 2, &staged_over_host});
  return all;
}

TEST(EngineOnGpuSetTrainable, TrainsAsOnTheCpu) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  for (const GpuChange& each : gpu_changes()) {
    if (each.world > most_rank_threads()) continue;
    for (const bool is_narrow : {false, true}) {
      Configuration on_gpu = each.configuration;
      if (is_narrow) {
        on_gpu.precision = {.parameters = at::kBFloat16, .communication = at::kBFloat16};
      }
      Configuration on_cpu = on_gpu;
      on_cpu.asynchronous_step = {};
      on_cpu.offload = Offload::kNone;
      const Outcome expected = train_on_threads(subject("OddMlp"), at::kFloat, on_cpu, schedule,
                                                each.world, changing_options());
      const Outcome outcome = train_on_threads(subject("OddMlp"), at::kFloat, on_gpu, schedule,
                                               each.world, changing_options(), each.decorate());
      EXPECT_EQ(gpu_differences(outcome, expected), "")
          << on_gpu << " at " << each.world << (is_narrow ? " in bfloat16" : "");
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
