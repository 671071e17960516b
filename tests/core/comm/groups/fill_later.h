#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// Queues a write of `values` to `tensor` on the current stream.
inline void fill_later(HostDevice& device, const at::Tensor& tensor, const at::Tensor& values) {
  HostDevice::run(*device.current_stream(), [tensor, values] { tensor.copy_(values); });
}

}  // namespace tessera::internal::testing
