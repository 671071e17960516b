#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Returns why `tensor` cannot be an entry of a checkpoint, "got X, expected Y"; "" if it can.
/// Allowed are dense tensors of a dtype that has a name in safetensors.
std::string tensor_problem(const at::Tensor& tensor);

}  // namespace tessera::internal
