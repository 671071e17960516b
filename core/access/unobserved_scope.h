#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

namespace tessera::internal {

/// A scope in which the calling thread runs the engine's own operators: observers do not see them,
/// nothing is recorded for backward, and new tensors are normal ones, even in InferenceMode.
struct UnobservedScope {
  at::RecordFunctionGuard observers{/*is_enabled=*/false};
  at::NoGradGuard no_grad;
  c10::InferenceMode inference{false};
};

}  // namespace tessera::internal
