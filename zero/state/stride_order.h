#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/state_dict.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Returns a 1-d copy [numel] of `tensor`, on the same device, with the elements in the memory
/// order that form.strides give. `form` must have the sizes and dtype of `tensor`.
at::Tensor copy_in_order(const at::Tensor& tensor, const StateEntry& form);

/// Returns a copy of `values` in the memory order of form.strides. `values` is [numel] in the
/// memory order of `strides`. Bits are kept.
at::Tensor reordered(const at::Tensor& values, const StateEntry& form,
                     const std::vector<int64_t>& strides);

/// Returns why `got` cannot be used as `expected` (another shape or dtype, or malformed); "" if it
/// can. The strides may differ unless StateSlot::is_order_bound.
std::string mismatch(const StateEntry& got, const StateSlot& expected);

}  // namespace tessera::internal
