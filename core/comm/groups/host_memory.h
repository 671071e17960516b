#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Local. ProcessGroup::allocate() in ordinary memory of the host, aligned to a page.
at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype);

}  // namespace tessera::internal
