#pragma once

#include <cstring>

#include <ATen/core/Tensor.h>

namespace tessera::internal::testing {

/// Whether both have the same sizes, dtype and bits, including NaNs and signs of zeros, on any
/// device and in any memory order.
inline bool have_same_bits(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.detach().cpu().contiguous();
  const at::Tensor b = other.detach().cpu().contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace tessera::internal::testing
