#include "tessera/core/numbers/power.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

constexpr double kOverflow = std::numeric_limits<double>::infinity();

/// The relative error of power() compared with the C library in extended precision.
double relative_error(double base, double exponent) {
  const long double right = std::pow(static_cast<long double>(base), exponent);
  return static_cast<double>(std::abs((power(base, exponent) - right) / right));
}

TEST(Power, IsWithinAFewUlpsOfTheCLibrarys) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponents(0.05, 6.0);
  std::uniform_real_distribution<double> magnitudes(-100.0, 100.0);
  for (int i = 0; i < 20000; ++i) {
    const double base = std::exp2(magnitudes(random));
    const double exponent = exponents(random);
    const double bits = std::abs(std::log2(base) * exponent);
    EXPECT_LE(relative_error(base, exponent), (8.0 + bits) * 0x1p-53) << base << " ^ " << exponent;
  }
}

TEST(Power, OfARootIsTheBaseAgain) {
  for (const double base : {1e-30, 0.3, 1.0, 2.0, 12345.678}) {
    for (const double p : {0.5, 1.5, 3.0, 7.0}) {
      EXPECT_NEAR(power(power(base, p), 1.0 / p), base, 1e-13 * base) << base << " " << p;
    }
  }
}

TEST(Power, KeepsWhatHasNoLogarithm) {
  for (const double p : {0.3, 1.0, 3.0}) {
    EXPECT_EQ(power(0.0, p), 0.0);
    EXPECT_EQ(power(kOverflow, p), kOverflow);
    EXPECT_TRUE(std::isnan(power(std::nan(""), p)));
    EXPECT_EQ(power(1.0, p), 1.0);
  }
}

TEST(Power, OverflowsAndVanishesAtTheEndsOfTheRange) {
  EXPECT_EQ(power(1e200, 2.0), kOverflow);
  EXPECT_EQ(power(1e-200, 2.0), 0.0);
  EXPECT_EQ(power(1e300, 1e9), kOverflow);
  EXPECT_EQ(power(1e-300, 1e9), 0.0);
  EXPECT_GT(power(5e-324, 1.0), 0.0) << "a subnormal number";
  EXPECT_NEAR(power(1e-107, 3.0) / 1e-321, 1.0, 0.01) << "a subnormal result";
  EXPECT_NEAR(power(std::numeric_limits<double>::max(), 1.0) / std::numeric_limits<double>::max(),
              1.0, 1e-12);
}

/// Negative control: the tolerance is so narrow that an fp32 result fails.
TEST(PowerNegativeControl, SinglePrecisionIsNoticed) {
  const double right = std::pow(3.7, 2.3);
  EXPECT_GT(std::abs(static_cast<float>(right) - right) / right, 100 * 0x1p-53);
}

}  // namespace
}  // namespace tessera::internal
