#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Returns true if `tensor`'s elements fill one gap-free block of memory without overlap, in any
/// order of dimensions.
bool is_non_overlapping_dense(const at::Tensor& tensor);

/// Returns the strides that `tensor` gets in a flat buffer: its own if it is non-overlapping and
/// dense (channels_last keeps its order), else contiguous ones.
std::vector<int64_t> flat_strides(const at::Tensor& tensor);

/// Returns a view of elements `range` of `flat` (1-d) with the sizes of `like` and
/// flat_strides(like). Local, no copy.
at::Tensor view_like(const at::Tensor& flat, Range range, const at::Tensor& like);

/// Returns the number of storage elements from the first to the last element of a strided tensor; 0
/// if it is empty.
int64_t extent_numel(const at::Tensor& tensor);

/// Returns true if `tensor` covers its storage from the first byte to the last, without overlap.
/// Then the storage can be given other memory with the same bytes, and every view follows.
bool fills_storage(const at::Tensor& tensor);

/// Returns a tensor of `dtype` with the sizes of `like` and flat_strides(like). Its storage has
/// exactly the needed size, but no memory yet.
at::Tensor without_memory(const at::Tensor& like, at::ScalarType dtype);

}  // namespace tessera::internal
