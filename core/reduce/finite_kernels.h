#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"

namespace tessera::internal {

/// Returns how many elements of `range` of `buffer` (1-d, contiguous, floating) are NaN or
/// infinite. Local; one pass.
int64_t count_non_finite(const at::Tensor& buffer, Range range);

/// Copies `range.numel` elements from `from` to `range` of `buffer` (1-d, contiguous, floating).
/// `from` has the dtype of `buffer` and does not overlap it. Returns how many of the elements are
/// NaN or infinite. Local; one pass.
int64_t copy_counting_non_finite(const at::Tensor& buffer, Range range, const void* from);

}  // namespace tessera::internal
