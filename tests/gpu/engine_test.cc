// The engine on GPUs: what it trains there is what it trains on the CPU, under every strategy. Over
// the fakes to the bit, because their operators are the CPU's.
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/training.h"

namespace tessera::testing {
namespace {

/// Over what ranks communicate.
enum class Over : uint8_t { kNothing, kHost, kNccl };

Decorate decorate(Over over) {
  switch (over) {
    case Over::kNothing:
      return alone();
    case Over::kHost:
      return staged_over_host();
    case Over::kNccl:
      return over_nccl();
  }
  throw std::out_of_range("no such world");
}

using EngineCase =
    std::tuple<Row, Over, int /*world*/, std::string /*model*/, std::string /*schedule*/>;

std::string name_of(const ::testing::TestParamInfo<EngineCase>& info) {
  const auto& [row, over, world, model, schedule] = info.param;
  const std::string by = over == Over::kNothing ? "Alone" : over == Over::kHost ? "Staged" : "Nccl";
  return row.name + "_" + by + std::to_string(world) + "_" + model + "_" + schedule;
}

class EngineOnGpu : public ::testing::TestWithParam<EngineCase> {};

TEST_P(EngineOnGpu, TrainsAsOnTheCpu) {
  const auto& [given, over, world, model, name] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  const Schedule& schedule = schedule_called(name);
  Row on_cpu = given;
  on_cpu.asynchronous_step = {};
  const Outcome expected = train_on_threads(subject(model), at::kFloat, on_cpu, schedule, world);
  Row row = given;
  row.poison_freed = true;
  const Outcome outcome =
      train_on_threads(subject(model), at::kFloat, row, schedule, world, {}, decorate(over));
  EXPECT_EQ(gpu_differences(outcome, expected), "");
}

Row waiting(Row row) {
  row.name += "_waiting";
  row.asynchronous_step = false;
  return row;
}

std::vector<Row> late_and_waiting() {
  std::vector<Row> rows;
  for (const Row& row : named_rows()) {
    rows.push_back(row);
    rows.push_back(waiting(row));
  }
  return rows;
}

const std::vector<std::string> kSchedules = {"OnceClipped", "ThriceClipped", "ThriceNoSync"};

INSTANTIATE_TEST_SUITE_P(Alone, EngineOnGpu,
                         ::testing::Combine(::testing::ValuesIn(late_and_waiting()),
                                            ::testing::Values(Over::kNothing), ::testing::Values(1),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::ValuesIn(kSchedules)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Strategies, EngineOnGpu,
                         ::testing::Combine(::testing::ValuesIn(late_and_waiting()),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::Values(1, 2, 3),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::ValuesIn(kSchedules)),
                         name_of);
/// Units that other units need in between, and more of them than buffers.
INSTANTIATE_TEST_SUITE_P(Units, EngineOnGpu,
                         ::testing::Combine(::testing::Values(row_of(Strategy::kZero3),
                                                              hostile(row_of(Strategy::kZero3)),
                                                              resharding(1)),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::Values(3),
                                            ::testing::Values("DeepMlp", "TiedMlp", "CalledTwice",
                                                              "Blocks", "FrozenLayers"),
                                            ::testing::Values("ThriceClipped")),
                         name_of);
/// A second gradient within one backward, for which ranks talk to each other in it.
INSTANTIATE_TEST_SUITE_P(Recomputed, EngineOnGpu,
                         ::testing::Combine(::testing::Values(waiting(row_of(Strategy::kDdp)),
                                                              waiting(row_of(Strategy::kZero3))),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::Values(3),
                                            ::testing::Values("CheckpointedTwice"),
                                            ::testing::Values("ThriceClipped")),
                         name_of);
/// Branches that ranks take each for itself, as far as parameters are resident.
INSTANTIATE_TEST_SUITE_P(Branches, EngineOnGpu,
                         ::testing::Combine(::testing::Values(row_of(Strategy::kDdp),
                                                              row_of(Strategy::kZero1),
                                                              row_of(Strategy::kZero2)),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::Values(3), ::testing::Values("Branches"),
                                            ::testing::Values("OnceClipped")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Hybrids, EngineOnGpu,
    ::testing::Combine(::testing::Values(hybrid(2, 2, 2), hybrid(1, 2, 4), hybrid(1, 1, 2)),
                       ::testing::Values(Over::kHost, Over::kNccl), ::testing::Values(4),
                       ::testing::Values("UnusedEverywhere"), ::testing::Values("ThriceClipped")),
    name_of);

}  // namespace
}  // namespace tessera::testing
