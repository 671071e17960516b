#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "tessera/collective.h"

namespace tessera::internal::kernels {

/// Local. As reduce() of reduce_kernels.h, for products, bit-wise operations and all dtypes of
/// integers and bool: in rank order, integers wrap, products of bf16 and fp16 in fp32 and rounded
/// once. Of bool SUM, MAX and BOR are "or", PRODUCT, MIN and BAND "and". LibTorch's operators do
/// it.
void reduce_plainly(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
                    char* const* targets, int target_count, int64_t numel);

}  // namespace tessera::internal::kernels
