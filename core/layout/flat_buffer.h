#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_layout.h"
#include "tessera/core/layout/parameter_table.h"

namespace tessera {

/// Whether `tensor`'s elements fill one gap-free block of memory without overlap, in any order of
/// dimensions.
bool is_non_overlapping_dense(const at::Tensor& tensor);

/// The strides under which `tensor` lives in a flat buffer: its own if it is non-overlapping and
/// dense (channels_last keeps its order), contiguous ones otherwise.
std::vector<int64_t> flat_strides(const at::Tensor& tensor);

/// A view of elements `range` of `flat` (1-d) with the sizes of `like` and flat_strides(like).
/// Local, no copy.
at::Tensor view_like(const at::Tensor& flat, Range range, const at::Tensor& like);

/// Makes `parameter` (a leaf) a view of `range` of `flat`: copies its values there, then swaps its
/// data with set_data. The user's tensor object, its autograd hooks and its names stay. Its version
/// counter is kept.
void move_into(const at::Tensor& flat, Range range, const at::Tensor& parameter);

/// Whether `parameter` still is what move_into made of it: a dense view of exactly `range` of
/// `flat` (same storage, offset, number of elements, dtype).
bool lives_in(const at::Tensor& flat, Range range, const at::Tensor& parameter);

/// Gives `parameter` memory of its own again, with its present values. Used when an engine ends.
void move_out(const at::Tensor& parameter);

}  // namespace tessera
