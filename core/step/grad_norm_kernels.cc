#include "tessera/core/step/grad_norm_kernels.h"

#include "tessera/core/step/vector_targets.h"

namespace tessera {

namespace {

constexpr int64_t kLanes = 8;

inline double widen(float x) { return x; }
inline double widen(double x) { return x; }
inline double widen(c10::BFloat16 x) { return static_cast<float>(x); }
inline double widen(c10::Half x) { return static_cast<float>(x); }

inline double sum_of_lanes(const double* lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/// Inlined into each of the functions below, to be compiled for their targets.
template <typename T>
__attribute__((always_inline)) inline void square_blocks_of(const T* x, int64_t numel,
                                                            double* sums) {
  const int64_t full_blocks = numel / kSquareBlockNumel;
  for (int64_t b = 0; b < full_blocks; ++b, x += kSquareBlockNumel) {
    double lanes[kLanes] = {};
    for (int64_t i = 0; i < kSquareBlockNumel; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = widen(x[i + lane]);
        lanes[lane] += value * value;
      }
    }
    sums[b] = sum_of_lanes(lanes);
  }
  const int64_t rest = numel - full_blocks * kSquareBlockNumel;
  if (rest == 0) return;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < rest; ++i) {
    const double value = widen(x[i]);
    lanes[i % kLanes] += value * value;
  }
  sums[full_blocks] = sum_of_lanes(lanes);
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

}  // namespace tessera
