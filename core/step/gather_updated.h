#pragma once

#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Gives every rank of `group` the slices that the others updated. values: [size() * n]; this
/// rank's slice of it is new, after the Work all of it is. Collective. Traffic: (N - 1) / N of the
/// buffer received per rank, in place.
std::shared_ptr<Work> gather_updated(ProcessGroup& group, const at::Tensor& values,
                                     std::string_view unit);

}  // namespace tessera::internal
