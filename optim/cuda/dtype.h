#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/optim/cuda/abi.h"

namespace tessera::internal::cuda {

/// Returns true if the kernels take elements of `dtype`: Float, BFloat16 and Half.
bool has_kernels(at::ScalarType dtype);
/// Returns the kernels' Dtype for `dtype`. Throws c10::Error if there are no kernels for `dtype`.
Dtype dtype_of(at::ScalarType dtype);

/// Throws c10::Error "[cuda] <what>: ..." unless `tensor` is 1-d and contiguous, lies on `device`,
/// holds `numel` elements and has kernels for its dtype.
void require_elements(const char* what, const at::Tensor& tensor, int64_t numel, at::Device device);

}  // namespace tessera::internal::cuda
