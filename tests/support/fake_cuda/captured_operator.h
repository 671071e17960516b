#pragma once

#include <memory>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "tessera/tests/support/fake_cuda/capture.h"
#include "tessera/tests/support/fake_cuda/device_stream.h"

namespace tessera::internal::testing {

/// An operator on a stream that captures: what it returns has the right shapes and holds nothing
/// yet, what it writes in place keeps its values, and each replay runs the CPU's kernel on the
/// addresses of now, whatever becomes of the tensors. Returns what the operator returns.
std::vector<c10::IValue> capture_operator(const std::shared_ptr<Capture>& capture,
                                          const DeviceStream& stream, int device,
                                          const c10::OperatorHandle& op,
                                          const std::vector<c10::IValue>& arguments);

}  // namespace tessera::internal::testing
