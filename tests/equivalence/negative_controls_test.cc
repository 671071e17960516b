#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/equivalence/broken_group.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"

// A comparison that cannot fail proves nothing: the functions of the equivalence suite must detect
// each of these errors.

namespace tessera::internal::testing {

std::shared_ptr<Work> BrokenGroup::run(const Collective& collective) {
  Collective broken = collective;
  if (break_ == Break::kSkipAverage && broken.reduce == ReduceOp::kAvg) {
    broken.reduce = ReduceOp::kSum;
  }
  const bool is_scatter = collective.op == Op::kReduceScatter;
  const int64_t numel = is_scatter ? collective.output.numel() : 0;
  const at::Tensor given =
      is_scatter ? collective.input.narrow(0, collective.slice * numel, numel) : collective.output;
  const at::Tensor before = given.defined() ? given.clone() : given;
  inner_->run(broken)->wait();
  damage(collective, before);
  return completed_work();
}

namespace {

/// Returns true for the bucket or unit of OddMlp that gets the error.
bool is_broken(std::string_view tag) { return tag == "bucket 1" || tag == "layer1"; }

class BrokenWindow final : public Window {
 public:
  BrokenWindow(std::unique_ptr<Window> inner, Break what, int own_rank)
      : inner_(std::move(inner)), break_(what), own_rank_(own_rank) {}
  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    inner_->read(rank, begin, to, tag, version);
    if (rank == own_rank_ || !is_broken(tag)) return completed_work();
    if (break_ == Break::kDropGather) to.zero_();
    if (break_ == Break::kShiftGather) to.copy_(to.roll(1));
    return completed_work();
  }
  int64_t load(int rank, int64_t index) const override { return inner_->load(rank, index); }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<Window> inner_;
  const Break break_;
  const int own_rank_;
};

}  // namespace

std::unique_ptr<Window> BrokenGroup::make_window(const at::Tensor& own, std::string_view name) {
  auto made = inner_->make_window(own, name);
  if (!is_last()) return made;
  return std::make_unique<BrokenWindow>(std::move(made), break_, rank());
}

void BrokenGroup::damage(const Collective& collective, const at::Tensor& before) const {
  const at::Tensor result = collective.output;
  switch (collective.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      if (break_ == Break::kDropBucket && rank() == 0 && is_broken(collective.tag)) {
        result.copy_(before);
      }
      if (break_ == Break::kShiftSlice) result.copy_(result.roll(1));
      break;
    case Op::kAllGather:
      if (break_ == Break::kDropUpdates && is_last() && collective.tag == "bucket 0") {
        result.copy_(before);
      }
      break;
    default:
      break;
  }
}

namespace {

constexpr int kWorld = 3;

Outcome train_broken(const Configuration& configuration, Break what) {
  return train_on_threads(subject("OddMlp"), at::kDouble, configuration, schedules().front(),
                          kWorld, {}, [what](std::shared_ptr<ProcessGroup> world) {
                            return std::make_shared<BrokenGroup>(std::move(world), what);
                          });
}

/// Returns what the suite reports about a broken run: the differences, or that ranks drifted apart.
std::string differences_found(const Configuration& configuration, Break what) {
  static const Outcome expected = oracle(subject("OddMlp"), schedules().front(), kWorld);
  try {
    return differences(train_broken(configuration, what), expected, subject("OddMlp").tolerance);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::vector<Configuration> broken_configurations() {
  std::vector<Configuration> configurations = named_and_apart_configurations();
  configurations.push_back(resharding(1));
  configurations.push_back(hybrid(3, 3, 3));
  return configurations;
}

class NegativeControl : public ::testing::TestWithParam<Configuration> {};

TEST_P(NegativeControl, AnUnbrokenDecoratorPasses) {
  EXPECT_EQ(differences_found(GetParam(), Break::kNone), "");
}
TEST_P(NegativeControl, ADroppedBucketIsCaught) {
  EXPECT_NE(differences_found(GetParam(), Break::kDropBucket), "");
}
TEST_P(NegativeControl, ASkippedAverageIsCaught) {
  EXPECT_NE(differences_found(GetParam(), Break::kSkipAverage), "");
}
TEST_P(NegativeControl, AShiftedSliceIsCaught) {
  EXPECT_NE(differences_found(GetParam(), Break::kShiftSlice), "");
}

INSTANTIATE_TEST_SUITE_P(, NegativeControl, ::testing::ValuesIn(broken_configurations()),
                         [](const auto& info) { return info.param.name; });

TEST(Comparison, AGatherOfWrongValuesIsCaught) {
  for (const Configuration& configuration :
       {apart(configuration_of(Strategy::kZero3)), resharding(1), apart(hybrid(3, 3, 3))}) {
    EXPECT_NE(differences_found(configuration, Break::kDropGather), "") << configuration;
    EXPECT_NE(differences_found(configuration, Break::kShiftGather), "") << configuration;
  }
}

TEST(Comparison, AMissingAllGatherIsCaughtAsRanksThatDiffer) {
  EXPECT_THAT(differences_found(apart(configuration_of(Strategy::kZero1)), Break::kDropUpdates),
              ::testing::HasSubstr("ranks of one world differ"));
  EXPECT_THAT(differences_found(apart(configuration_of(Strategy::kZero2)), Break::kDropUpdates),
              ::testing::HasSubstr("ranks of one world differ"));
}

TEST(Comparison, OneOtherBitIsCaught) {
  const std::map<std::string, at::Tensor> expected = {{"weight", at::ones({3})}};
  std::map<std::string, at::Tensor> got = {{"weight", at::ones({3})}};
  EXPECT_EQ(bit_differences(got, expected), "");
  got["weight"][1] = std::nextafter(1.0F, 2.0F);
  EXPECT_THAT(bit_differences(got, expected), ::testing::HasSubstr("'weight' element 1 of 3"));
  got["weight"] = at::ones({3});
  got["other"] = at::ones({1});
  EXPECT_THAT(bit_differences(got, expected), ::testing::HasSubstr("'other': not expected"));
  EXPECT_THAT(bit_differences({}, expected), ::testing::HasSubstr("'weight': missing"));
}

TEST(Comparison, SignedZerosAndNansDoNotPass) {
  const std::map<std::string, at::Tensor> zero = {{"weight", at::zeros({1})}};
  const std::map<std::string, at::Tensor> minus_zero = {{"weight", -at::zeros({1})}};
  EXPECT_NE(bit_differences(minus_zero, zero), "");
  const std::map<std::string, at::Tensor> nan = {
      {"weight", at::full({1}, std::numeric_limits<double>::quiet_NaN())}};
  EXPECT_NE(differences(nan, zero, 1e-3), "");
}

TEST(Comparison, OneStepTooFewIsCaught) {
  Schedule schedule = schedules().front();
  const Outcome expected = oracle(subject("TiedMlp"), schedule, 1);
  --schedule.steps;
  EXPECT_NE(differences(oracle(subject("TiedMlp"), schedule, 1), expected, 1e-3), "");
}

}  // namespace
}  // namespace tessera::internal::testing
