#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tessera::internal {

/// Elements of one block: the unit in which squares are summed before they are added exactly.
inline constexpr int64_t kSquareBlockNumel = 64;

/// sums[b] = the sum of the squares of x[64 b, 64 b + 64) in fp64, in a fixed order; a last block
/// that is not full counts as filled up with zeros. `sums` holds ceil(numel / 64) values.
void square_blocks(const float* x, int64_t numel, double* sums);
void square_blocks(const double* x, int64_t numel, double* sums);
void square_blocks(const c10::BFloat16* x, int64_t numel, double* sums);
void square_blocks(const c10::Half* x, int64_t numel, double* sums);

}  // namespace tessera::internal
