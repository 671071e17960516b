#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Whether `tensor`'s elements fill one gap-free block of memory without overlap, in any order of
/// dimensions.
bool is_non_overlapping_dense(const at::Tensor& tensor);

/// The strides under which `tensor` lives in a flat buffer: its own if it is non-overlapping and
/// dense (channels_last keeps its order), contiguous ones otherwise.
std::vector<int64_t> flat_strides(const at::Tensor& tensor);

/// A view of elements `range` of `flat` (1-d) with the sizes of `like` and flat_strides(like).
/// Local, no copy.
at::Tensor view_like(const at::Tensor& flat, Range range, const at::Tensor& like);

/// How many elements of its storage lie from a strided tensor's first to its last; 0 if it is
/// empty.
int64_t extent_numel(const at::Tensor& tensor);

/// Whether `tensor` is all that its storage holds: from the first byte to the last, without
/// overlap. Then other memory with the same bytes can be put under the storage, and every view
/// follows.
bool fills_storage(const at::Tensor& tensor);

/// A tensor of `dtype` with the sizes of `like` and flat_strides(like), on a storage of exactly its
/// size that has no memory yet.
at::Tensor without_memory(const at::Tensor& like, at::ScalarType dtype);

}  // namespace tessera::internal
