// The scalar arithmetic that the kernels share with the CPU, compared with c10 and std::pow.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include "tessera/optim/cuda/narrow.h"
#include "tessera/optim/cuda/power.h"
#include "tessera/optim/formulas/adamw_element.h"

namespace tessera::internal::cuda {
namespace {

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Narrow, WidensEveryNumberAsC10) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto word = static_cast<uint16_t>(i);
    const auto bfloat16 = static_cast<float>(c10::BFloat16(word, c10::BFloat16::from_bits()));
    const auto half = static_cast<float>(c10::Half(word, c10::Half::from_bits()));
    ASSERT_EQ(bits(widen(BFloat16{word})), bits(bfloat16)) << i;
    if (std::isnan(half)) {
      ASSERT_TRUE(std::isnan(widen(Half{word}))) << i;
    } else {
      ASSERT_EQ(bits(widen(Half{word})), bits(half)) << i;
    }
    ASSERT_EQ(is_non_finite(BFloat16{word}), !std::isfinite(bfloat16)) << i;
    ASSERT_EQ(is_non_finite(Half{word}), !std::isfinite(half)) << i;
  }
}

void expect_as_c10(float value) {
  ASSERT_EQ(narrow<BFloat16>(value).bits, static_cast<c10::BFloat16>(value).x) << value;
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(widen(narrow<Half>(value)))) << value;
  } else {
    ASSERT_EQ(narrow<Half>(value).bits, static_cast<c10::Half>(value).x) << value;
  }
  ASSERT_EQ(is_non_finite(value), !std::isfinite(value)) << value;
}

TEST(Narrow, RoundsToTheNearestEvenAsC10) {
  // Every upper half, with lower halves around the ties of both types.
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U,
                                 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      expect_as_c10(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 200000; ++i) {
    expect_as_c10(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
}

TEST(Narrow, NegativeControlTruncationWouldBeNoticed) {
  const float tie = std::bit_cast<float>(0x3F818000U);
  EXPECT_NE(narrow<BFloat16>(tie).bits, static_cast<uint16_t>(0x3F81U));
  EXPECT_EQ(narrow<BFloat16>(tie).bits, 0x3F82U);
}

/// Distance in representable numbers.
int64_t apart(double a, double b) {
  return std::abs(std::bit_cast<int64_t>(a) - std::bit_cast<int64_t>(b));
}

TEST(Power, IsWithinOneBitOfThePower) {
  for (const double base : {0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 0.999999}) {
    EXPECT_EQ(power_of(base, 0), 1.0);
    EXPECT_EQ(power_of(base, 1), base);
    for (int64_t exponent = 1; exponent < 3000; ++exponent) {
      const double expected = std::pow(base, static_cast<double>(exponent));
      if (expected < std::numeric_limits<double>::min()) break;
      ASSERT_LE(apart(power_of(base, exponent), expected), 1) << base << "^" << exponent;
    }
    for (const int64_t exponent : {10000LL, 123457LL, 1LL << 20, 10000000LL, 1LL << 40}) {
      EXPECT_NEAR(power_of(base, exponent), std::pow(base, static_cast<double>(exponent)), 1e-16);
    }
  }
}

// Elements use bias corrections as floats, and these are equal.
TEST(Power, TheScalarsAreThoseOfTheCpu) {
  for (const auto& [beta1, beta2] : {std::pair{0.9, 0.999}, {0.9, 0.95}, {0.8, 0.99}, {0.0, 0.5}}) {
    const AdamHyperParameters group = {3e-4, beta1, beta2, 1e-8, 0.1};
    for (int64_t step = 1; step <= 50000; ++step) {
      const auto exponent = static_cast<double>(step);
      const auto here = adamw_scalars<float>(
          adamw_coefficients(group, power_of(beta1, step), power_of(beta2, step), 1.0));
      const auto there = adamw_scalars<float>(
          adamw_coefficients(group, std::pow(beta1, exponent), std::pow(beta2, exponent), 1.0));
      ASSERT_EQ(bits(here.step_size), bits(there.step_size)) << step;
      ASSERT_EQ(bits(here.root_correction2), bits(there.root_correction2)) << step;
    }
  }
}

}  // namespace
}  // namespace tessera::internal::cuda
