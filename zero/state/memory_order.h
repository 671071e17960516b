#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/state_dict.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// The elements of `tensor` in the memory order of form.strides: [numel]. `form` has its sizes and
/// dtype. A copy, on its device.
at::Tensor copy_in_order(const at::Tensor& tensor, const StateEntry& form);

/// `values`, [numel] in the memory order of `strides`, in the memory order of form.strides. A copy;
/// bits are kept.
at::Tensor reordered(const at::Tensor& values, const StateEntry& form,
                     const std::vector<int64_t>& strides);

/// Why `got` cannot be used as `expected`: another shape or dtype, or malformed; "" if it can, also
/// with other strides, unless the slot is bound to its own.
std::string mismatch(const StateEntry& got, const StateSlot& expected);

}  // namespace tessera::internal
