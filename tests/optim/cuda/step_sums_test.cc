// The sums of ranks before a step, with the fake module on delayed streams, compared with core's
// functions on the CPU.
#include "tessera/optim/cuda/step_sums.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/reduce/finite_kernels.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/tests/optim/cuda/exact_words.h"
#include "tessera/tests/optim/cuda/host_kit.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal::cuda {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<int64_t> kSummedNumels = {130, 1, 65, 9001, 64, 7, 0, 300};
constexpr size_t kFrozen = 5;

ParameterTable make_table(at::ScalarType dtype = at::kFloat) {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < kSummedNumels.size(); ++i) {
    named.push_back(
        {std::to_string(i), at::empty({kSummedNumels[i]}, dtype).set_requires_grad(i != kFrozen)});
  }
  return ParameterTable(std::move(named));
}

UnitPlan make_plan(const ParameterTable& table, int world, const Precision& precision = {}) {
  return UnitPlan(table, {{"first", {7, 3, 0}}, {"second", {1, 2, 4, 6}}}, world, precision);
}

/// [unit numel] with zeros in the padding, different for each seed.
at::Tensor make_gradient(const PlannedUnit& unit, at::ScalarType dtype, uint64_t seed) {
  const at::Tensor gradient = at::zeros({unit.layout.numel()}, at::kFloat);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const Segment& segment : unit.layout.segments({0, unit.layout.numel()})) {
    for (int64_t i = 0; i < segment.numel; ++i) {
      gradient.mutable_data_ptr<float>()[segment.buffer_offset + i] =
          std::ldexp(normal(random), static_cast<int>(random() % 9) - 4);
    }
  }
  return gradient.to(dtype);
}

std::vector<int64_t> part(const std::vector<int64_t>& words, int64_t begin, int64_t numel) {
  return {words.begin() + begin, words.begin() + begin + numel};
}

class StepSumsTest : public ::testing::Test {
 protected:
  HostKit kit_{std::chrono::microseconds(100)};
  ParameterTable table_ = make_table();
  const int64_t parameters_ = static_cast<int64_t>(table_.size());
  const std::vector<uint8_t> used_ = std::vector<uint8_t>(table_.size(), 1);
};

TEST_F(StepSumsTest, SquaresOfAtomsAddUpToThoseOfTheCpu) {
  for (const int world : {1, 2, 3}) {
    const UnitPlan plan = make_plan(table_, world);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      ExactSum whole;
      std::vector<int64_t> added(kExactWords, 0);
      for (int rank = 0; rank < world; ++rank) {
        const SliceMap slices({.parameters = 1, .gradients = 1, .optimizer = 1}, world, rank);
        StepSums sums(table_, plan, slices, kit_.api(), kit_.device());
        ExactSum own;
        for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
          const FlatLayout& layout = plan[unit].layout;
          const at::Tensor gradient = make_gradient(plan[unit], dtype, unit);
          const Range atom = slices.atom(layout);
          for (const Segment& segment : layout.segments(atom)) add_squares(gradient, segment, own);
          // The kept part may begin at the unit's start, before the atom, or with it.
          const int64_t begin = unit == 0 ? 0 : atom.begin;
          sums.add_squares(unit, kit_.put(gradient.narrow(0, begin, atom.end() - begin)), begin);
        }
        sums.write_own_words(used_, 0, false);
        whole.merge(own);
        const std::vector<int64_t> words = kit_.words(sums.words());
        EXPECT_EQ(part(words, kSquaresAt, kExactWords), words_of(own)) << rank << " of " << world;
        for (size_t i = 0; i < kExactWords; ++i) added[i] += words[i];
      }
      EXPECT_EQ(ExactSum::load(std::span<const int64_t, kExactWords>(added)).value(),
                whole.value());
      EXPECT_GT(whole.value(), 0.0);
    }
  }
}

TEST_F(StepSumsTest, CountsWhatIsNotFinitePerParameter) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const UnitPlan plan = make_plan(table_, 3);
    StepSums sums(table_, plan, SliceMap({.parameters = 3, .gradients = 3, .optimizer = 3}, 3, 1),
                  kit_.api(), kit_.device());
    std::vector<int64_t> expected(table_.size(), 0);
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
        const FlatLayout& layout = plan[unit].layout;
        const at::Tensor gradient = make_gradient(plan[unit], dtype, unit);
        if (unit == 0) {
          gradient[layout.parameter_range(1).begin] = kNan;            // parameter 3
          gradient[layout.parameter_range(1).end() - 1] = -kInfinity;  // the same
          gradient[layout.parameter_range(2).begin + 7 + micro_step] = kInfinity;
        }
        for (size_t i = 0; i < layout.parameters(); ++i) {
          expected[plan[unit].parameters[i]] +=
              tessera::internal::count_non_finite(gradient, layout.parameter_range(i));
        }
        sums.count_non_finite(unit, kit_.put(gradient));
      }
    }
    const std::vector<int64_t> words = kit_.words(sums.words());
    EXPECT_EQ(part(words, kNonFiniteAt, parameters_), expected);
    EXPECT_EQ(expected, (std::vector<int64_t>{2, 0, 0, 4, 0, 0, 0, 0}));
    sums.clear();
    EXPECT_EQ(kit_.words(sums.words()),
              std::vector<int64_t>(static_cast<size_t>(step_words(8)), 0));
  }
}

TEST_F(StepSumsTest, WritesWhatTheRankItselfKnows) {
  const UnitPlan plan = make_plan(table_, 1);
  StepSums sums(table_, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 1}, 1, 0),
                kit_.api(), kit_.device());
  EXPECT_EQ(sums.words().numel(), step_words(8));
  EXPECT_EQ(sums.used(), sums.words().const_data_ptr<int64_t>() + used_at(8));
  EXPECT_EQ(sums.bytes(), step_words(8) * 8 + 2 * 16 * 8) << "8 pieces";
  const std::vector<uint8_t> used = {1, 0, 255, 0, 0, 1, 0, 1};
  for (int step = 0; step < 4; ++step) {  // reuses the staging memory
    sums.clear();
    sums.write_own_words(used, 0x0ABCDE123456789AU, step % 2 == 1);
    const std::vector<int64_t> words = kit_.words(sums.words());
    EXPECT_EQ(words[kRefusalsAt], step % 2);
    const std::vector<int64_t> pieces = {0x6789A, 0x12345, 0xABCDE};
    for (int piece = 0; piece < kAgreementPieces; ++piece) {
      const int64_t bits = pieces[static_cast<size_t>(piece)];
      EXPECT_EQ(words[static_cast<size_t>(kAgreementAt + 2 * piece)], bits);
      EXPECT_EQ(words[static_cast<size_t>(kAgreementAt + 2 * piece + 1)], bits * bits);
    }
    EXPECT_EQ(part(words, used_at(8), 8), (std::vector<int64_t>{1, 0, 1, 0, 0, 1, 0, 1}));
  }
}

TEST_F(StepSumsTest, EveryBitOfTheHashCounts) {
  const UnitPlan plan = make_plan(table_, 1);
  StepSums sums(table_, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 1}, 1, 0),
                kit_.api(), kit_.device());
  constexpr uint64_t kHash = 0x9E3779B97F4A7C15U;
  sums.write_own_words(used_, kHash, false);
  const std::vector<int64_t> words = kit_.words(sums.words());
  for (int bit = 0; bit < 64; ++bit) {
    sums.write_own_words(used_, kHash ^ (uint64_t{1} << bit), false);
    EXPECT_NE(kit_.words(sums.words()), words) << bit;
  }
  sums.write_own_words(used_, kHash, false);
  EXPECT_EQ(kit_.words(sums.words()), words);
}

TEST_F(StepSumsTest, NoCallWaitsForTheDevice) {
  const UnitPlan plan = make_plan(table_, 2);
  const at::Tensor gradient = kit_.put(make_gradient(plan[0], at::kFloat, 1));
  std::unique_ptr<StepSums> sums;
  EXPECT_TRUE(kit_.returns_while_device_stands([&] {
    sums = std::make_unique<StepSums>(
        table_, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 2}, 2, 1), kit_.api(),
        kit_.device());
    for (int step = 0; step < 5; ++step) {
      sums->clear();
      sums->count_non_finite(0, gradient);
      sums->add_squares(0, gradient, 0);
      sums->write_own_words(used_, static_cast<uint64_t>(step), false);
    }
  }));
  EXPECT_EQ(kit_.words(sums->words())[kAgreementAt], 4) << "the last step's";
}

TEST_F(StepSumsTest, NegativeControlAForgottenClearIsNoticed) {
  const UnitPlan plan = make_plan(table_, 1);
  StepSums sums(table_, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 1}, 1, 0),
                kit_.api(), kit_.device());
  const at::Tensor gradient = kit_.put(make_gradient(plan[0], at::kFloat, 1));
  const auto step = [&] {
    sums.add_squares(0, gradient, 0);
    sums.write_own_words(used_, 0, false);
    return kit_.words(sums.words());
  };
  const std::vector<int64_t> once = step();
  sums.clear();
  EXPECT_EQ(step(), once);
  EXPECT_NE(step(), once);
}

TEST_F(StepSumsTest, RefusesTensorsThatDoNotFit) {
  const UnitPlan plan = make_plan(table_, 2);
  StepSums sums(table_, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 2}, 2, 1),
                kit_.api(), kit_.device());
  const Settled settled(kit_);
  const int64_t numel = plan[0].layout.numel();
  const at::Tensor fits = at::zeros({numel}, at::kFloat);
  EXPECT_THAT(testing::message_of([&] { sums.count_non_finite(2, fits); }),
              HasSubstr("[optim] unit: got number 2, expected less than 2"));
  EXPECT_THAT(testing::message_of([&] { sums.count_non_finite(0, at::Tensor()); }),
              HasSubstr("[cuda] gradients: got no tensor, expected"));
  EXPECT_THAT(testing::message_of([&] { sums.count_non_finite(0, fits.narrow(0, 0, 64)); }),
              HasSubstr("[cuda] gradients: got Float [64] on cpu, expected a contiguous [" +
                        std::to_string(numel) + "] of Float, BFloat16 or Half on cpu"));
  EXPECT_THAT(testing::message_of([&] { sums.count_non_finite(0, fits.to(at::kDouble)); }),
              HasSubstr("[cuda] gradients: got Double ["));
  EXPECT_THAT(testing::message_of([&] { sums.add_squares(0, fits.narrow(0, 0, 64), 0); }),
              HasSubstr("[optim] gradient: got elements 0 to 64 of the unit, expected all of this "
                        "rank's part, " +
                        std::to_string(numel / 2) + " to " + std::to_string(numel)));
  EXPECT_THAT(testing::message_of([&] { sums.write_own_words(std::vector<uint8_t>(3), 0, false); }),
              HasSubstr("[optim] used: got 3 entries, expected 8"));
}

TEST_F(StepSumsTest, SaysWhichPlansHaveNoKernels) {
  EXPECT_EQ(problem_of(make_plan(table_, 2), 2), "");
  EXPECT_EQ(problem_of(make_plan(table_, 2, {.parameters = at::kBFloat16}), 2), "");
  EXPECT_EQ(problem_of(make_plan(table_, 2), kMaxRanks), "");
  EXPECT_EQ(problem_of(make_plan(table_, 2), 1025),
            "[optim] world size on GPUs: got 1025, expected at most 1024");
  const ParameterTable doubles = make_table(at::kDouble);
  const UnitPlan plan = make_plan(doubles, 1);
  const std::string problem = problem_of(plan, 1);
  EXPECT_THAT(problem,
              HasSubstr("[optim] unit 'first' master: got Double, expected Float on a GPU; "
                        "set precision.master, or train on the CPU\n"));
  EXPECT_THAT(
      problem,
      HasSubstr(
          "[optim] unit 'second' communication: got Double, expected Float, BFloat16 or Half on "
          "a GPU; set precision.communication, or train on the CPU"));
  EXPECT_EQ(testing::message_of([&] {
              StepSums(doubles, plan,
                       SliceMap({.parameters = 1, .gradients = 1, .optimizer = 1}, 1, 0),
                       kit_.api(), kit_.device());
            }),
            problem);
}

}  // namespace
}  // namespace tessera::internal::cuda
