#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Why the elements of a strided tensor cannot be read where they lie, "its memory is free" say, or
/// ""; for what is not strided or has no addresses (meta), "" too. An operator may read such a
/// tensor all the same: a lazy negation, conjugation or zero is no value in memory. Local.
std::string reading_problem(const at::Tensor& tensor);

}  // namespace tessera::internal
