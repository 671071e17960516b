#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/flat_layout.h"

namespace tessera::internal {

/// Adds the squares of `segment` of the flat gradient `buffer` (1-d fp32, fp64, bf16 or fp16) to
/// `sum`. Each block of 64 elements, counted from the parameter's start, is summed in fp64 in a
/// fixed order, and the block sums are added exactly. So the norm has the same bits however slices
/// are cut (Note [Padding]). Used by every strategy on a CPU. Local.
void add_squares(const at::Tensor& buffer, const Segment& segment, ExactSum& sum);

/// Like add_squares(), but adds |g|^p (0 < p < infinity), where g is an element clamped to [-limit,
/// limit]. NaN and infinities are not clamped, so that they show in the sum. With p = 2 and limit =
/// infinity it equals add_squares().
void add_powers(const at::Tensor& buffer, const Segment& segment, double p, double limit,
                ExactSum& sum);

/// Returns the largest |g| of `segment`, with elements clamped as in add_powers(); NaN if an
/// element is NaN, 0 if the segment is empty.
double largest_magnitude(const at::Tensor& buffer, const Segment& segment, double limit);

}  // namespace tessera::internal
