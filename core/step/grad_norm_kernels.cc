#include "tessera/core/step/grad_norm_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/core/numbers/narrow_float.h"
#include "tessera/core/numbers/power.h"
#include "tessera/core/numbers/vector_targets.h"

namespace tessera::internal {

namespace {

constexpr int64_t kLanes = 8;

inline double sum_of_lanes(const double* lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

[[gnu::always_inline]] inline double exact(float x) { return x; }
[[gnu::always_inline]] inline double exact(double x) { return x; }
[[gnu::always_inline]] inline double exact(c10::BFloat16 x) { return widen(x); }
[[gnu::always_inline]] inline double exact(c10::Half x) { return widen(x); }

// The functions at the end of the file are compiled for several instruction sets. The following
// code is inlined into them, so that it is compiled for each of these instruction sets.

template <typename T>
[[gnu::always_inline]] inline double square_full_block(const T* x) {
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < kSquareBlockNumel; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = exact(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  return sum_of_lanes(lanes);
}

/// Returns the sum of squares of a block of a 16-bit type. Converts the block in one loop and adds
/// in another, because compilers vectorise two such loops but not a combined one.
template <typename T>
[[gnu::always_inline]] inline double square_narrow_block(const T* x) {
  float wide[kSquareBlockNumel];
  for (int64_t i = 0; i < kSquareBlockNumel; ++i) wide[i] = widen(x[i]);
  return square_full_block(wide);
}

[[gnu::always_inline]] inline double square_full_block(const c10::BFloat16* x) {
  return square_narrow_block(x);
}
[[gnu::always_inline]] inline double square_full_block(const c10::Half* x) {
  return square_narrow_block(x);
}

template <typename T>
[[gnu::always_inline]] inline void square_blocks_of(const T* x, int64_t numel, double* sums) {
  const int64_t full_blocks = numel / kSquareBlockNumel;
  for (int64_t b = 0; b < full_blocks; ++b, x += kSquareBlockNumel) sums[b] = square_full_block(x);
  const int64_t rest = numel - full_blocks * kSquareBlockNumel;
  if (rest == 0) return;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < rest; ++i) {
    const double value = exact(x[i]);
    lanes[i % kLanes] += value * value;
  }
  sums[full_blocks] = sum_of_lanes(lanes);
}

/// Returns |x|, at most `limit`; infinities and NaN stay.
[[gnu::always_inline]] inline double magnitude(double x, double limit) {
  const double absolute = std::fabs(x);
  const bool is_clamped = (absolute > limit) & (absolute <= std::numeric_limits<double>::max());
  return is_clamped ? limit : absolute;
}

struct Magnitude {
  [[gnu::always_inline]] double operator()(double x) const { return x; }
};
struct Square {
  [[gnu::always_inline]] double operator()(double x) const { return x * x; }
};
struct Power {
  double p;
  double operator()(double x) const { return power(x, p); }
};

template <typename T, typename Term>
[[gnu::always_inline]] inline void term_blocks(const T* x, int64_t numel, double limit,
                                               const Term& term, double* sums) {
  for (int64_t begin = 0; begin < numel; begin += kSquareBlockNumel) {
    const int64_t count = std::min(numel - begin, kSquareBlockNumel);
    double lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      lanes[i % kLanes] += term(magnitude(exact(x[begin + i]), limit));
    }
    *sums++ = sum_of_lanes(lanes);
  }
}

template <typename T>
[[gnu::always_inline]] inline void power_blocks_of(const T* x, int64_t numel, double p,
                                                   double limit, double* sums) {
  if (p == 1.0) return term_blocks(x, numel, limit, Magnitude(), sums);
  if (p == 2.0) return term_blocks(x, numel, limit, Square(), sums);
  term_blocks(x, numel, limit, Power{p}, sums);
}

template <typename T>
[[gnu::always_inline]] inline double largest_magnitude_of(const T* x, int64_t numel, double limit) {
  double largest = 0.0;
  for (int64_t i = 0; i < numel; ++i) {
    const double value = magnitude(exact(x[i]), limit);
    largest = ((value > largest) | (value != value)) ? value : largest;
  }
  return largest;
}

}  // namespace

TESSERA_VECTOR_TARGETS void square_blocks(const float* x, int64_t numel, double* sums) {
  square_blocks_of(x, numel, sums);
}

TESSERA_VECTOR_TARGETS void square_blocks(const double* x, int64_t numel, double* sums) {
  square_blocks_of(x, numel, sums);
}

TESSERA_VECTOR_TARGETS void square_blocks(const c10::BFloat16* x, int64_t numel, double* sums) {
  square_blocks_of(x, numel, sums);
}

TESSERA_VECTOR_TARGETS void square_blocks(const c10::Half* x, int64_t numel, double* sums) {
  square_blocks_of(x, numel, sums);
}

TESSERA_VECTOR_TARGETS void power_blocks(const float* x, int64_t numel, double p, double limit,
                                         double* sums) {
  power_blocks_of(x, numel, p, limit, sums);
}

TESSERA_VECTOR_TARGETS void power_blocks(const double* x, int64_t numel, double p, double limit,
                                         double* sums) {
  power_blocks_of(x, numel, p, limit, sums);
}

TESSERA_VECTOR_TARGETS void power_blocks(const c10::BFloat16* x, int64_t numel, double p,
                                         double limit, double* sums) {
  power_blocks_of(x, numel, p, limit, sums);
}

TESSERA_VECTOR_TARGETS void power_blocks(const c10::Half* x, int64_t numel, double p, double limit,
                                         double* sums) {
  power_blocks_of(x, numel, p, limit, sums);
}

TESSERA_VECTOR_TARGETS double largest_of(const float* x, int64_t numel, double limit) {
  return largest_magnitude_of(x, numel, limit);
}

TESSERA_VECTOR_TARGETS double largest_of(const double* x, int64_t numel, double limit) {
  return largest_magnitude_of(x, numel, limit);
}

TESSERA_VECTOR_TARGETS double largest_of(const c10::BFloat16* x, int64_t numel, double limit) {
  return largest_magnitude_of(x, numel, limit);
}

TESSERA_VECTOR_TARGETS double largest_of(const c10::Half* x, int64_t numel, double limit) {
  return largest_magnitude_of(x, numel, limit);
}

}  // namespace tessera::internal
