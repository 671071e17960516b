// The engine's memory on a GPU is as predicted by the formula.
#include <string>

#include <gtest/gtest.h>

#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

Configuration in_bf16(Configuration configuration) {
  configuration.name += "_bf16";
  configuration.precision.parameters = at::kBFloat16;
  return configuration;
}

class MemoryOnGpu : public ::testing::TestWithParam<Configuration> {};

TEST_P(MemoryOnGpu, IsWhatTheFormulaSays) {
  const Configuration& configuration = GetParam();
  const int world = configuration.strategy == Strategy::kHybrid ? 4
                    : most_rank_threads() < 3                   ? 1
                                                                : 3;
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  Schedule schedule;
  schedule.bucket_bytes = 1 << 10;  // many units
  TrainOptions options;
  options.after_step = [](Engine& engine, int step) {
    if (step < 1) return;
    MemoryBytes now = engine.memory().now();
    const MemoryBytes predicted = predicted_memory(engine, 1);
    for (const MemoryClass kept :
         {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
          MemoryClass::kUnshardedParameters, MemoryClass::kRoot}) {
      EXPECT_EQ(now[kept], predicted[kept]) << to_string(kept);
    }
    EXPECT_LE(engine.memory().peak()[MemoryClass::kGradientBuffers],
              predicted_peak_memory(engine, 1)[MemoryClass::kGradientBuffers]);
    EXPECT_GT(predicted_peak_memory(engine, 1)[MemoryClass::kGradientBuffers] +
                  predicted_peak_memory(engine, 1)[MemoryClass::kGradients],
              0);
  };
  train_on_threads(subject("DeepMlp"), at::kFloat, configuration, schedule, world, options,
                   over_nccl());
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, MemoryOnGpu,
    ::testing::Values(configuration_of(Strategy::kDdp), configuration_of(Strategy::kZero1),
                      configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3),
                      in_bf16(configuration_of(Strategy::kDdp)),
                      in_bf16(configuration_of(Strategy::kZero1)),
                      in_bf16(configuration_of(Strategy::kZero2)),
                      in_bf16(configuration_of(Strategy::kZero3)), hybrid(2, 2, 2)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal::testing
