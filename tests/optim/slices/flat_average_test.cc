#include "tessera/optim/slices/flat_average.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/same_bits.h"

// The arithmetic of the average of an optimizer's shards, which does not depend on the slicing.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Values of shard `shard` at step `step`.
at::Tensor values_at(int64_t numel, at::ScalarType dtype, int step, uint64_t shard = 0) {
  at::Generator random =
      at::make_generator<at::CPUGeneratorImpl>(1000 * shard + static_cast<uint64_t>(step));
  return at::randn({numel}, random, at::TensorOptions(dtype));
}

class FlatAverageOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(, FlatAverageOf, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

/// The average of `numel` elements after `steps` updates, in shards of `cut` elements.
at::Tensor averaged(const WeightAverage& setting, at::ScalarType dtype, int64_t numel, int64_t cut,
                    int steps) {
  std::vector<at::Tensor> shards = at::zeros({numel}, dtype).split(cut);
  for (at::Tensor& shard : shards) shard = shard.clone();
  FlatAverage average(setting, shards);
  for (int step = 1; step <= steps; ++step) {
    const std::vector<at::Tensor> values = values_at(numel, dtype, step).split(cut);
    for (size_t i = 0; i < values.size(); ++i) average.update(i, values[i].clone());
    average.count_update();
  }
  for (size_t i = 0; i < shards.size(); ++i) shards[i] = average.average(i);
  return at::cat(shards);
}

TEST_P(FlatAverageOf, BitsDoNotDependOnTheCuts) {
  for (const WeightAverage setting : {WeightAverage{.decay = 0.9}, WeightAverage{}}) {
    const at::Tensor whole = averaged(setting, GetParam(), 1000, 1000, 5);
    for (const int64_t cut : {1, 7, 63, 64, 65, 128}) {
      EXPECT_TRUE(have_same_bits(averaged(setting, GetParam(), 1000, cut, 5), whole)) << cut;
    }
    EXPECT_FALSE(have_same_bits(averaged(setting, GetParam(), 1000, 1000, 4), whole))
        << "the control";
  }
}

TEST_P(FlatAverageOf, IsTheFormulaOfPyTorch) {
  const auto dtype = GetParam();
  const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-14;
  at::Tensor decayed = values_at(77, dtype, 1).to(at::kDouble);
  at::Tensor mean = decayed.clone();
  for (int step = 2; step <= 6; ++step) {
    const at::Tensor values = values_at(77, dtype, step).to(at::kDouble);
    decayed = 0.75 * decayed + 0.25 * values;
    mean = mean + (values - mean) / static_cast<double>(step);
  }
  EXPECT_TRUE(at::allclose(averaged({.decay = 0.75}, dtype, 77, 77, 6).to(at::kDouble), decayed,
                           tolerance, tolerance));
  EXPECT_TRUE(
      at::allclose(averaged({}, dtype, 77, 77, 6).to(at::kDouble), mean, tolerance, tolerance));
  EXPECT_FALSE(at::allclose(averaged({.decay = 0.7}, dtype, 77, 77, 6).to(at::kDouble), decayed,
                            tolerance, tolerance))
      << "the control";
}

TEST_P(FlatAverageOf, TheFirstValuesAreCopiedAndSwapsKeepBits) {
  at::Tensor values = values_at(70, GetParam(), 1);
  values[3] = -0.0;
  values[4] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor first = values.clone();
  for (const WeightAverage setting : {WeightAverage{.decay = 0.9}, WeightAverage{}}) {
    FlatAverage average(setting, {values});
    EXPECT_TRUE(have_same_bits(average.average(0), at::zeros({70}, GetParam())));
    EXPECT_EQ(average.updates(), 0);
    average.update(0, values);
    average.count_update();
    EXPECT_EQ(average.updates(), 1);
    EXPECT_TRUE(have_same_bits(average.average(0), first));

    const at::Tensor others = values_at(70, GetParam(), 2);
    const at::Tensor shown = others.clone();
    average.swap(0, shown);
    EXPECT_TRUE(have_same_bits(shown, first));
    EXPECT_TRUE(have_same_bits(average.average(0), others));
    average.swap(0, shown);
    EXPECT_TRUE(have_same_bits(average.average(0), first));
  }
}

TEST(FlatAverage, AveragesTheStepsItIsToldTo) {
  const auto due = [](const WeightAverage& setting) {
    const FlatAverage average(setting, {});
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= 10; ++step) {
      if (average.is_due(step)) steps.push_back(step);
    }
    return steps;
  };
  EXPECT_THAT(due({}), ::testing::SizeIs(10));
  EXPECT_THAT(due({.start_step = 4, .every = 3}), ::testing::ElementsAre(4, 7, 10));
  EXPECT_THAT(due({.start_step = 11}), ::testing::IsEmpty());
}

TEST(FlatAverage, HasMemoryForItsShardsAndRefusesOthers) {
  const std::vector<at::Tensor> shards = {at::zeros({64}), at::zeros({128}, at::kDouble),
                                          at::zeros({0})};
  FlatAverage average({}, shards);
  EXPECT_EQ(average.bytes(), 64 * 4 + 128 * 8);
  average.update(2, shards[2]);
  EXPECT_THAT([&] { average.update(0, shards[1]); },
              ThrowsMessage<c10::Error>(HasSubstr("got 128 values of Double, expected 64 of")));
  EXPECT_THAT([&] { average.swap(0, at::zeros({63})); },
              ThrowsMessage<c10::Error>(HasSubstr("got 63 values of Float, expected 64 of")));
  EXPECT_THAT([] { FlatAverage({}, {at::zeros({64}, at::kBFloat16)}); },
              ThrowsMessage<c10::Error>(HasSubstr("no contiguous 1-d tensor of Float or Double")));
}

}  // namespace
}  // namespace tessera::internal::testing
