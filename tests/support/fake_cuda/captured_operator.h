#pragma once

#include <memory>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "tessera/tests/support/fake_cuda/capture.h"
#include "tessera/tests/support/fake_cuda/device_stream.h"

namespace tessera::internal::testing {

/// Runs an operator on a capturing stream. Results have the right shapes and undefined contents,
/// tensors written in place keep their values, and each replay runs the CPU's kernel on the
/// addresses of the capture, even if the tensors are gone. Returns the operator's results.
std::vector<c10::IValue> capture_operator(const std::shared_ptr<Capture>& capture,
                                          const DeviceStream& stream, int device,
                                          const c10::OperatorHandle& op,
                                          const std::vector<c10::IValue>& arguments);

}  // namespace tessera::internal::testing
