// The engine on GPUs: what it trains there is what it trains on the CPU, under every strategy. Over
// the fakes to the bit, because their operators are the CPU's.
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/training.h"

namespace tessera::testing {
namespace {

const Schedule& schedule_called(const std::string& name) {
  for (const Schedule& schedule : schedules()) {
    if (schedule.name == name) return schedule;
  }
  throw std::out_of_range("no schedule is called " + name);
}

using Case = std::tuple<Row, int /*world*/, std::string /*model*/, std::string /*schedule*/>;

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [row, world, model, schedule] = info.param;
  return row.name + "_World" + std::to_string(world) + "_" + model + "_" + schedule;
}

class EngineOnGpu : public ::testing::TestWithParam<Case> {};

TEST_P(EngineOnGpu, TrainsAsOnTheCpu) {
  const auto& [given, world, model, name] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  const Schedule& schedule = schedule_called(name);
  Row on_cpu = given;
  on_cpu.late_verdict = {};
  on_cpu.offload = Offload::kNone;
  const Outcome expected = train_on_threads(subject(model), at::kFloat, on_cpu, schedule, world);
  Row row = given;
  row.poison_freed = true;
  const Outcome outcome =
      train_on_threads(subject(model), at::kFloat, row, schedule, world, {}, staged_over_host());
  EXPECT_EQ(bit_differences(outcome, expected), "");
}

Row waiting(Row row) {
  row.name += "_waiting";
  row.late_verdict = false;
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

INSTANTIATE_TEST_SUITE_P(
    Strategies, EngineOnGpu,
    ::testing::Combine(::testing::ValuesIn(late_and_waiting()), ::testing::Values(1, 2, 3),
                       ::testing::Values("UnusedEverywhere"),
                       ::testing::Values("OnceClipped", "ThriceClipped", "ThriceNoSync")),
    name_of);

}  // namespace
}  // namespace tessera::testing
