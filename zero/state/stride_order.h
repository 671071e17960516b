#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/state_dict.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Returns the elements of `tensor` in the memory order of form.strides: [numel]. `form` has its
/// sizes and dtype. A copy, on the same device.
at::Tensor copy_in_order(const at::Tensor& tensor, const StateEntry& form);

/// Returns a copy of `values`, [numel] in the memory order of `strides`, in the memory order of
/// form.strides. Bits are kept.
at::Tensor reordered(const at::Tensor& values, const StateEntry& form,
                     const std::vector<int64_t>& strides);

/// Returns why `got` cannot be used as `expected` (another shape or dtype, or malformed); "" if it
/// can. Other strides are no reason, unless the slot is bound to its own.
std::string mismatch(const StateEntry& got, const StateSlot& expected);

}  // namespace tessera::internal
