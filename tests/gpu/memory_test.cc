// What the engine holds on a GPU is what the formula says.
#include <string>

#include <gtest/gtest.h>

#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/training.h"

namespace tessera::testing {
namespace {

Row in_bf16(Row row) {
  row.name += "_bf16";
  row.precision.parameters = at::kBFloat16;
  return row;
}

class MemoryOnGpu : public ::testing::TestWithParam<Row> {};

TEST_P(MemoryOnGpu, IsWhatTheFormulaSays) {
  const Row& row = GetParam();
  const int world = row.strategy == Strategy::kHybrid ? 4 : most_rank_threads() < 3 ? 1 : 3;
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
  train_on_threads(subject("DeepMlp"), at::kFloat, row, schedule, world, options, over_nccl());
}

INSTANTIATE_TEST_SUITE_P(Rows, MemoryOnGpu,
                         ::testing::Values(row_of(Strategy::kDdp), row_of(Strategy::kZero1),
                                           row_of(Strategy::kZero2), row_of(Strategy::kZero3),
                                           in_bf16(row_of(Strategy::kDdp)),
                                           in_bf16(row_of(Strategy::kZero1)),
                                           in_bf16(row_of(Strategy::kZero2)),
                                           in_bf16(row_of(Strategy::kZero3)), hybrid(2, 2, 2)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
