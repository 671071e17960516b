#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

namespace tessera::internal::testing {

inline at::Tensor parameter(at::IntArrayRef sizes, c10::ScalarType dtype = c10::kFloat) {
  return at::zeros(sizes, at::dtype(dtype)).requires_grad_();
}

}  // namespace tessera::internal::testing
