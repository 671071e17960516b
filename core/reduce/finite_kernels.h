#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"

namespace tessera::internal {

/// Returns how many elements of `range` of `buffer` (1-d, contiguous, floating) are NaN or
/// infinite. Local; one pass.
int64_t count_non_finite(const at::Tensor& buffer, Range range);

/// Copies `range.numel` elements from `from`, which have the dtype of `buffer` and do not overlap
/// it, to `range` of `buffer` (1-d, contiguous, floating). Returns how many of them are NaN or
/// infinite. Local; one pass.
int64_t copy_counting_non_finite(const at::Tensor& buffer, Range range, const void* from);

}  // namespace tessera::internal
