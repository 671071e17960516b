#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Copies the data of `tensor`, which fills its storage, into ordinary memory. The tensor keeps its
/// storage, so all views and aliases follow. Local; nobody may use the tensor meanwhile.
void move_to_own_memory(const at::Tensor& tensor);

}  // namespace tessera::internal
