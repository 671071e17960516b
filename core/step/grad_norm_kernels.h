#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tessera::internal {

/// The number of elements in a block. The squares in a block are summed in fp64; then the sums of
/// blocks are added exactly.
inline constexpr int64_t kSquareBlockNumel = 64;

/// Sets sums[b] to the sum of the squares of x[64 b, 64 b + 64) in fp64, in a fixed order; a last
/// block that is not full is filled up with zeros. `sums` holds ceil(numel / 64) values.
void square_blocks(const float* x, int64_t numel, double* sums);
void square_blocks(const double* x, int64_t numel, double* sums);
void square_blocks(const c10::BFloat16* x, int64_t numel, double* sums);
void square_blocks(const c10::Half* x, int64_t numel, double* sums);

/// Does the same with |x|^p in place of squares, where p is above 0 and finite. A finite |x| above
/// `limit` counts as `limit`.
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
