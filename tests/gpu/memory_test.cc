// The engine's memory on a GPU is as predicted by the formula.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/comparison.h"
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

/// The stream waits for all reductions but the last units_in_reduction - 1, so each buffer more
/// lets one more reduction run beside backward.
TEST(UnitsInReductionOnGpu, AreAsManyAsTheOptionSaysAndChangeNoBits) {
  const int world = std::min(most_rank_threads(), 3);
  if (world < 2) GTEST_SKIP() << "needs 2 GPUs";
  Schedule schedule;
  schedule.bucket_bytes = 1 << 10;
  std::vector<int64_t> peaks;
  std::vector<Outcome> outcomes;
  for (const int units : {1, 2, 4}) {
    std::atomic<int64_t> peak{0};
    TrainOptions options;
    options.adjust = [&](Options& adjusted) { adjusted.units_in_reduction = units; };
    options.after_step = [&](Engine& engine, int) {
      const int64_t now = engine.memory().peak()[MemoryClass::kGradientBuffers];
      EXPECT_LE(now, predicted_peak_memory(engine, 1)[MemoryClass::kGradientBuffers]);
      peak = now;
    };
    outcomes.push_back(train_on_threads(subject("DeepMlp"), at::kFloat,
                                        configuration_of(Strategy::kZero2), schedule, world,
                                        options, over_nccl()));
    peaks.push_back(peak);
  }
  EXPECT_LT(peaks[0], peaks[1]);
  EXPECT_LT(peaks[1], peaks[2]);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(bit_differences(outcome, outcomes[0]), "");
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
