#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_layout.h"

namespace tessera {

/// How many elements of `range` of `buffer` (1-d, contiguous, floating) are NaN or infinite. Local;
/// one pass.
int64_t count_non_finite(const at::Tensor& buffer, Range range);

}  // namespace tessera
