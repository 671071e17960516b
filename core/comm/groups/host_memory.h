#pragma once

#include <cstdint>
#include <cstring>

#include <ATen/core/Tensor.h>

#include "tessera/collective.h"

namespace tessera::internal {

/// Returns the address of the first element; null if the tensor is undefined.
inline char* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<char*>(tensor.data_ptr()) : nullptr;
}

/// Returns true if the tensors have a byte in common.
inline bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() && other.defined() && data_of(one) < data_of(other) + other.nbytes() &&
         data_of(other) < data_of(one) + one.nbytes();
}

inline bool share_memory(const Collective& one, const Collective& other) {
  return share_memory(one.input, other.input) || share_memory(one.input, other.output) ||
         share_memory(one.output, other.input) || share_memory(one.output, other.output);
}

/// Local. Does nothing if `to` equals `from`, or if `bytes` is 0; then the addresses may be null.
inline void copy_bytes(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace tessera::internal
