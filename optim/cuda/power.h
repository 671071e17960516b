#pragma once

#include <cstdint>

#include "tessera/core/numbers/device_code.h"

namespace tessera::internal::cuda {

/// A number as the unevaluated sum of two doubles, about 106 bits.
struct DoubleDouble {
  double high;
  double low;
};

/// Returns the product, whose leading part is computed exactly by Dekker's algorithm, without fused
/// multiply-adds.
TESSERA_DEVICE_CODE inline DoubleDouble multiply(const DoubleDouble& a, const DoubleDouble& b) {
  constexpr double kSplitter = 134217729.0;  // 2^27 + 1
  const double scaled_a = kSplitter * a.high;
  const double scaled_b = kSplitter * b.high;
  const double top_a = scaled_a - (scaled_a - a.high);
  const double top_b = scaled_b - (scaled_b - b.high);
  const double rest_a = a.high - top_a;
  const double rest_b = b.high - top_b;
  const double product = a.high * b.high;
  const double error =
      ((top_a * top_b - product) + top_a * rest_b + rest_a * top_b) + rest_a * rest_b;
  const double low = error + (a.high * b.low + a.low * b.high);
  const double high = product + low;
  return {high, low - (high - product)};
}

/// Returns base^exponent for 0 <= base <= 1 and exponent >= 0. The result is computed to about 100
/// bits and rounded to double, so it is the nearest double unless the exact power lies almost in
/// the middle between two doubles. std::pow may differ from this in the last bit, and the device's
/// pow in the last two. Returns the same bits on the CPU and the GPU.
TESSERA_DEVICE_CODE inline double power_of(double base, int64_t exponent) {
  DoubleDouble result = {1.0, 0.0};
  DoubleDouble square = {base, 0.0};
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result.high + result.low;
}

}  // namespace tessera::internal::cuda
