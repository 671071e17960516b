#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/process_group.h"

namespace tessera {

/// Gives every rank the values that rank `from_rank` holds in `tensors` (any strides and supported
/// dtypes; equal shapes on all ranks). Collective, blocking. bool travels as uint8; other dtypes
/// the group does not move throw c10::Error that names the tensor by `what`.
void sync_replicas(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int from_rank,
                   std::string_view what);

}  // namespace tessera
