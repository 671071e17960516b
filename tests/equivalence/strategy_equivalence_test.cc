#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"

// The heart of the tests: a strategy changes where state lives, never what is computed. In fp64
// every strategy is compared with a plain LibTorch loop on the concatenated batch; in fp32 the
// strategies are compared with each other, to the bit.

namespace tessera::testing {
namespace {

using Case = std::tuple<Strategy, int /*world*/, Subject, Schedule>;

std::string strategy_label(Strategy strategy) {
  std::string label(to_string(strategy));
  label[0] = static_cast<char>(std::toupper(label[0]));
  return label;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [strategy, world, subject, schedule] = info.param;
  return strategy_label(strategy) + "_World" + std::to_string(world) + "_" + subject.name + "_" +
         schedule.name;
}

/// The outcome that all strategies of one world, model and schedule are compared with, made once.
const Outcome& remembered(std::map<std::string, Outcome>& memory, int world, const Subject& subject,
                          const Schedule& schedule, const std::function<Outcome()>& make) {
  const std::string key = std::to_string(world) + " " + subject.name + " " + schedule.name;
  const auto it = memory.find(key);
  return it != memory.end() ? it->second : memory.emplace(key, make()).first->second;
}

class OracleEquivalence : public ::testing::TestWithParam<Case> {};

TEST_P(OracleEquivalence, TrainsLikeAPlainLoopOnTheConcatenatedBatch) {
  static std::map<std::string, Outcome> memory;
  const auto& [strategy, world, subject, schedule] = GetParam();
  const Subject& model = subject;
  const Schedule& plan = schedule;
  const int size = world;
  const Outcome& expected =
      remembered(memory, world, subject, schedule, [&] { return oracle(model, plan, size); });
  const Outcome got = train_on_threads(subject, at::kDouble, strategy, schedule, world);
  EXPECT_EQ(differences(got, expected, subject.tolerance), "");
}

std::vector<Subject> comparable_subjects() {
  std::vector<Subject> comparable;
  for (const Subject& subject : subjects()) {
    if (std::isfinite(subject.tolerance)) comparable.push_back(subject);
  }
  return comparable;
}

INSTANTIATE_TEST_SUITE_P(
    , OracleEquivalence,
    ::testing::Combine(::testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2),
                       ::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(comparable_subjects()),
                       ::testing::ValuesIn(schedules())),
    name_of);

class StrategyEquivalence : public ::testing::TestWithParam<Case> {};

TEST_P(StrategyEquivalence, TrainsToTheBitsOfDdp) {
  static std::map<std::string, Outcome> memory;
  const auto& [strategy, world, subject, schedule] = GetParam();
  const Subject& model = subject;
  const Schedule& plan = schedule;
  const int size = world;
  const Outcome& expected = remembered(memory, world, subject, schedule, [&] {
    return train_on_threads(model, at::kFloat, Strategy::kDdp, plan, size);
  });
  const Outcome got = train_on_threads(subject, at::kFloat, strategy, schedule, world);
  EXPECT_EQ(bit_differences(got, expected), "");
}

INSTANTIATE_TEST_SUITE_P(, StrategyEquivalence,
                         ::testing::Combine(::testing::Values(Strategy::kZero1, Strategy::kZero2),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(subjects()),
                                            ::testing::ValuesIn(schedules())),
                         name_of);

/// Repeating a run must give the same bits, or comparing bits would prove nothing.
TEST(RunsOfOneStrategy, RepeatTheirOwnBits) {
  const Schedule& schedule = schedules().back();
  const Outcome first =
      train_on_threads(subject("Branches"), at::kFloat, Strategy::kZero2, schedule, 3);
  const Outcome second =
      train_on_threads(subject("Branches"), at::kFloat, Strategy::kZero2, schedule, 3);
  EXPECT_EQ(bit_differences(first, second), "");
}

/// The sizes of buckets decide what is sent together, not what is computed.
TEST(RunsOfOneStrategy, KeepTheirBitsWithOtherBuckets) {
  Schedule schedule = schedules().back();
  const Outcome small =
      train_on_threads(subject("DeepMlp"), at::kFloat, Strategy::kZero1, schedule, 3);
  schedule.bucket_bytes = Options().bucket_bytes;
  const Outcome large =
      train_on_threads(subject("DeepMlp"), at::kFloat, Strategy::kZero1, schedule, 3);
  EXPECT_EQ(bit_differences(small, large), "");
}

}  // namespace
}  // namespace tessera::testing
