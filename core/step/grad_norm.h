#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/flat_layout.h"

namespace tessera::internal {

/// Adds the squares of `segment` of the flat gradient `buffer` (1-d fp32, fp64, bf16 or fp16) to
/// `sum`. Blocks of 64 elements, counted from the parameter's start, are each summed in fp64 in a
/// fixed order and added exactly, so that the norm has the same bits however slices are cut (Note
/// [Padding]). The only function that squares gradients, for every strategy. Local.
void add_squares(const at::Tensor& buffer, const Segment& segment, ExactSum& sum);

/// The same for |g|^p, 0 < p < infinity, of elements clamped to [-limit, limit]. NaN and infinities
/// are not clamped, so that they show in the sum. p = 2 and limit = infinity is add_squares().
void add_powers(const at::Tensor& buffer, const Segment& segment, double p, double limit,
                ExactSum& sum);

/// Returns the largest |g| of these elements, clamped likewise; NaN if one is NaN, 0 if none.
double largest_magnitude(const at::Tensor& buffer, const Segment& segment, double limit);

}  // namespace tessera::internal
