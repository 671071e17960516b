#include "tessera/core/numbers/power.h"

#include <cmath>
#include <limits>

namespace tessera::internal {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kSqrtHalf = 0.707106781186547524401;

/// Returns log2(m) for sqrt(1/2) <= m < sqrt(2) by the series of 2 artanh(s) at s = (m - 1) / (m +
/// 1). s^2 is below 0.0295, so the terms that are left out are below 2^-64 of the result.
double log2_of_mantissa(double m) {
  constexpr int kTerms = 12;
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = kTerms; k >= 0; --k) sum = sum * square + 1.0 / (2 * k + 1);
  return 2.0 * s * sum / kLn2;
}

/// Returns 2^x for |x| <= 1/2, by the series of the exponential function.
double exp2_of_fraction(double x) {
  constexpr int kTerms = 15;
  const double z = x * kLn2;
  double sum = 1.0;
  for (int k = kTerms; k >= 1; --k) sum = 1.0 + sum * z / k;
  return sum;
}

}  // namespace

double power(double base, double exponent) {
  if (!(base > 0.0) || std::isinf(base)) return base;  // 0, infinity, NaN
  int binary_exponent = 0;
  double mantissa = std::frexp(base, &binary_exponent);  // [1/2, 1)
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    --binary_exponent;
  }
  // This product is exact in most cases; otherwise its error is small relative to the product.
  const double whole = exponent * binary_exponent;
  const double fraction = exponent * log2_of_mantissa(mantissa);
  const double nearest = std::nearbyint(whole + fraction);
  constexpr double kBeyond = 3000.0;  // overflows or underflows for certain
  if (nearest > kBeyond) return std::numeric_limits<double>::infinity();
  if (nearest < -kBeyond) return 0.0;
  return std::ldexp(exp2_of_fraction((whole - nearest) + fraction), static_cast<int>(nearest));
}

}  // namespace tessera::internal
