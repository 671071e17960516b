#include "tessera/core/numbers/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/core/numbers/exact_words.h"

namespace tessera::internal {
namespace {

using testing::words_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (double term : terms) sum.add(term);
  return sum.value();
}

uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }

/// Finite doubles of all signs and exponents, denormals included.
double any_double(std::mt19937_64& random) {
  for (;;) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) return value;
  }
}

TEST(ExactSum, OneTermIsItself) {
  std::mt19937_64 random(1);
  for (double term : {1.0, -1.0, 0.5, 3.25, kMax, -kMax, kTiny, -kTiny, 4 * kTiny, 0x1p-1022,
                      -0x1p-1022, 0x1.fffffffffffffp-1023, 0x1p-1023, 0x1p1023}) {
    EXPECT_EQ(bits(sum_of({term})), bits(term)) << term;
  }
  for (int i = 0; i < 10000; ++i) {
    const double term = any_double(random);
    ASSERT_EQ(bits(sum_of({term})), bits(term)) << term;
  }
}

TEST(ExactSum, NothingAndZerosSumToPlusZero) {
  EXPECT_EQ(bits(sum_of({})), bits(0.0));
  EXPECT_EQ(bits(sum_of({0.0, -0.0})), bits(0.0));
  EXPECT_EQ(bits(sum_of({-0.0})), bits(0.0));
  EXPECT_EQ(bits(sum_of({3.5, -3.5})), bits(0.0));
}

TEST(ExactSum, TwoTermsRoundAsTheProcessorRounds) {
  // IEEE addition of two doubles is the exact sum rounded once to nearest even: the same contract.
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    const double a = any_double(random);
    // Exponents close to each other, so that rounding really happens.
    const double b = std::ldexp(any_double(random), 0);
    const double near =
        std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52,
                   std::clamp(std::ilogb(a == 0 ? 1.0 : a) + static_cast<int>(random() % 130) - 65,
                              -1074, 1023)) *
        (random() % 2 == 0 ? 1 : -1);
    ASSERT_EQ(bits(sum_of({a, b})), bits(a + b)) << a << " " << b;
    ASSERT_EQ(bits(sum_of({a, near})), bits(a + near)) << a << " " << near;
  }
}

TEST(ExactSum, HalvesRoundToEven) {
  const double ulp = 0x1p-52;
  EXPECT_EQ(sum_of({1.0, ulp / 2}), 1.0);
  EXPECT_EQ(sum_of({1.0 + ulp, ulp / 2}), 1.0 + 2 * ulp);
  EXPECT_EQ(sum_of({1.0, ulp / 2, kTiny}), 1.0 + ulp) << "a hair above the half";
  EXPECT_EQ(sum_of({1.0, ulp / 2, -kTiny}), 1.0) << "a hair below the half";
  EXPECT_EQ(sum_of({1.0 + ulp, ulp / 2, -kTiny}), 1.0 + ulp);
  EXPECT_EQ(sum_of({-1.0 - ulp, -ulp / 2}), -1.0 - 2 * ulp);
  EXPECT_EQ(sum_of({-1.0, -ulp / 2, kTiny}), -1.0);
  EXPECT_EQ(sum_of({-1.0, -ulp / 2, -kTiny}), -1.0 - ulp);
  EXPECT_EQ(sum_of({2.0 - ulp, ulp / 2}), 2.0) << "the carry reaches the exponent";
}

TEST(ExactSum, LosesNothingToCancellation) {
  EXPECT_EQ(sum_of({1e308, 1.0, -1e308}), 1.0);
  EXPECT_EQ(sum_of({1e308, kTiny, -1e308}), kTiny);
  EXPECT_EQ(sum_of({1e16, 1.0, 1.0, -1e16, -3.0}), -1.0);
  EXPECT_EQ(sum_of({kTiny, -1.0, 1.0}), kTiny);
}

TEST(ExactSum, DenormalsAddExactly) {
  EXPECT_EQ(sum_of({kTiny, kTiny, kTiny}), 3 * kTiny);
  EXPECT_EQ(sum_of({0x1p-1022, -kTiny}), 0x1p-1022 - kTiny);
  EXPECT_EQ(sum_of(std::vector<double>(4096, kTiny)), 4096 * kTiny);
  EXPECT_EQ(sum_of({-0x1p-1023, -0x1p-1023}), -0x1p-1022);
}

TEST(ExactSum, LargeSumsOverflowOnlyWhereTheExactResultDoes) {
  EXPECT_EQ(sum_of({1e308, 1e308}), kInfinity);
  EXPECT_EQ(sum_of({-1e308, -1e308}), -kInfinity);
  EXPECT_EQ(sum_of({1e308, 1e308, -1e308}), 1e308) << "partial sums do not overflow";
  EXPECT_EQ(sum_of(std::vector<double>(5000, kMax)), kInfinity);
  EXPECT_EQ(sum_of(std::vector<double>(70000, -kMax)), -kInfinity)
      << "beyond all but the last digit";
  EXPECT_EQ(sum_of({kMax, 0x1p969}), kMax) << "less than half a unit in the last place";
  EXPECT_EQ(sum_of({kMax, 0x1p970}), kInfinity) << "half a unit rounds to even, which is infinity";
  ExactSum sum;
  for (int i = 0; i < 70000; ++i) sum.add(kMax);
  for (int i = 0; i < 70000; ++i) sum.add(-kMax);
  EXPECT_EQ(bits(sum.value()), bits(0.0));
}

TEST(ExactSum, NanAndInfinitiesAreRemembered) {
  EXPECT_TRUE(std::isnan(sum_of({1.0, kNan, 2.0})));
  EXPECT_EQ(sum_of({1.0, kInfinity, -kMax}), kInfinity);
  EXPECT_EQ(sum_of({1.0, -kInfinity}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, kNan})));
  ExactSum bad;
  bad.add(kNan);
  ExactSum good;
  good.add(1.0);
  good.merge(ExactSum::load(words_of(bad)));
  EXPECT_TRUE(std::isnan(good.value()));
}

TEST(ExactSum, AnyOrderAndGroupingGivesTheSameWords) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> terms(301);
    for (double& term : terms) term = any_double(random);
    ExactSum reference;
    for (double term : terms) reference.add(term);
    for (int order = 0; order < 5; ++order) {
      std::shuffle(terms.begin(), terms.end(), random);
      std::array<ExactSum, 7> parts;
      for (double term : terms) parts[random() % parts.size()].add(term);
      ExactSum merged;
      for (const ExactSum& part : parts) merged.merge(ExactSum::load(words_of(part)));
      EXPECT_EQ(words_of(merged), words_of(reference));
      EXPECT_EQ(bits(merged.value()), bits(reference.value()));
      // As an all-reduce with an integer sum does it.
      std::array<int64_t, ExactSum::kWords> added{};
      for (const ExactSum& part : parts) {
        const auto words = words_of(part);
        for (size_t i = 0; i < words.size(); ++i) added[i] += words[i];
      }
      EXPECT_EQ(words_of(ExactSum::load(added)), words_of(reference));
    }
  }
}

TEST(ExactSum, MatchesQuadruplePrecisionWhereThatIsExact) {
  // 200 integers below 2^100 times powers of two within 2^10: 113 bits hold every partial sum.
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    ExactSum sum;
    __float128 reference = 0;
    for (int i = 0; i < 200; ++i) {
      const double term = std::ldexp(static_cast<double>(static_cast<int64_t>(random()) >> 11),
                                     static_cast<int>(random() % 40));
      sum.add(term);
      reference += static_cast<__float128>(term);
    }
    ASSERT_EQ(bits(sum.value()), bits(static_cast<double>(reference)));
  }
}

TEST(ExactSum, ManyTermsNormalizeInTime) {
  // Doubling by merging reaches counts at which digits would overflow if carries were never
  // propagated.
  ExactSum sum;
  sum.add(0x1.fffffffffffffp0);
  for (int i = 0; i < 100; ++i) sum.merge(ExactSum(sum));
  EXPECT_EQ(sum.value(), std::ldexp(0x1.fffffffffffffp0, 100));
  ExactSum negative;
  negative.add(-0x1.fffffffffffffp0);
  for (int i = 0; i < 100; ++i) negative.merge(ExactSum(negative));
  sum.merge(negative);
  EXPECT_EQ(bits(sum.value()), bits(0.0));
}

TEST(ExactSumNegativeControl, TheSameTermsInDoubleArithmeticDependOnTheOrder) {
  const std::vector<double> terms = {1e16, 1.0, -1e16, 1.0};
  double forward = 0;
  for (double term : terms) forward += term;
  double sorted = 0;
  for (double term : {1.0, 1.0, 1e16, -1e16}) sorted += term;
  EXPECT_NE(forward, sorted);
  EXPECT_EQ(sum_of(terms), 2.0);
  ExactSum a;
  a.add(1.0);
  ExactSum b = a;
  b.add(kTiny);
  EXPECT_NE(words_of(a), words_of(b)) << "the exchanged form keeps what rounding drops";
}

}  // namespace
}  // namespace tessera::internal
