#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/core/access/access_key.h"

namespace tessera::internal {

/// A scope in which the calling thread runs the engine's own operators: observers do not see them,
/// nothing is recorded for backward, and new tensors are normal ones, even in InferenceMode.
struct UnobservedScope {
  c10::impl::ExcludeDispatchKeyGuard key{kAccessKey};
  at::RecordFunctionGuard observers{/*is_enabled=*/false};
  at::NoGradGuard no_grad;
  c10::InferenceMode inference{false};
};

}  // namespace tessera::internal
