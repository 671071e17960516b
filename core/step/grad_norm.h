#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_layout.h"
#include "tessera/core/step/exact_sum.h"

namespace tessera {

/// Adds the squares of `segment` of the flat gradient `buffer` (1-d fp32, fp64, bf16 or fp16) to
/// `sum`. Blocks of 64 elements counted from the parameter's start are each summed in fp64 in a
/// fixed order and added exactly, so that the norm has the same bits however slices are cut (see
/// Note [Padding]). The only function that squares gradients, for every strategy. Local.
void add_squares(const at::Tensor& buffer, const Segment& segment, ExactSum& sum);

/// The factor that scales gradients of norm `norm` down to `max_norm`: min(1, max_norm / (norm +
/// 1e-6)), as torch's clip_grad_norm_.
double clip_factor(double norm, double max_norm);

}  // namespace tessera
