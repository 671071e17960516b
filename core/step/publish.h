#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/process_group.h"

namespace tessera {

/// Gives every rank the slices that the others updated. values: the unit's flat parameter buffer
/// [unit numel]; this rank's slice of it is new, afterwards all of it is. Collective, blocking.
/// Wire: (N - 1) / N of the buffer received per rank, in place.
void publish(ProcessGroup& group, const at::Tensor& values, std::string_view unit);

}  // namespace tessera
