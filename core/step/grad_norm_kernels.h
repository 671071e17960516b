#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tessera::internal {

/// Elements of one block, whose squares are summed before block sums are added exactly.
inline constexpr int64_t kSquareBlockNumel = 64;

/// Sets sums[b] to the sum of the squares of x[64 b, 64 b + 64) in fp64, in a fixed order; a last
/// block that is not full is filled up with zeros. `sums` holds ceil(numel / 64) values.
void square_blocks(const float* x, int64_t numel, double* sums);
void square_blocks(const double* x, int64_t numel, double* sums);
void square_blocks(const c10::BFloat16* x, int64_t numel, double* sums);
void square_blocks(const c10::Half* x, int64_t numel, double* sums);

/// Sets sums[b] to the sum of |x|^p over the same blocks in the same order, 0 < p < infinity.
/// Finite |x| above `limit` count as `limit`.
void power_blocks(const float* x, int64_t numel, double p, double limit, double* sums);
void power_blocks(const double* x, int64_t numel, double p, double limit, double* sums);
void power_blocks(const c10::BFloat16* x, int64_t numel, double p, double limit, double* sums);
void power_blocks(const c10::Half* x, int64_t numel, double p, double limit, double* sums);

/// Returns the largest |x|, where finite values above `limit` count as `limit`; NaN if an element
/// is NaN, 0 if numel is 0.
double largest_of(const float* x, int64_t numel, double limit);
double largest_of(const double* x, int64_t numel, double limit);
double largest_of(const c10::BFloat16* x, int64_t numel, double limit);
double largest_of(const c10::Half* x, int64_t numel, double limit);

}  // namespace tessera::internal
