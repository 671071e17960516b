#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Why the elements of a strided tensor cannot be read from memory, such as "its memory is free";
/// "" if they can, and for tensors that are not strided or have no addresses (meta). Operators may
/// still be able to read the tensor: lazy negation, conjugation and zeros have no values in memory.
/// Local.
std::string reading_problem(const at::Tensor& tensor);

}  // namespace tessera::internal
