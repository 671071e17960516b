#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Why the elements of a strided tensor cannot be read from memory, such as "its memory is free";
/// "" if they can, and for tensors that are not strided or have no addresses (meta). Operators may
/// still be able to read the tensor: lazy negation, conjugation and zeros have no values in memory.
/// Local.
std::string reading_problem(const at::Tensor& tensor);

/// `tensor`, or a copy of it that has its values in memory where `tensor` is a lazy zero or its
/// negation or conjugation is lazy (at::_neg_view(), conj(), gradients of real() and imag()); of a
/// sparse COO tensor the same of its values. Whoever takes the address of a tensor that was not
/// made here, or compares it with another, asks this before, or reading_problem(). Local; costs
/// nothing for tensors that are in memory.
at::Tensor in_memory(const at::Tensor& tensor);

}  // namespace tessera::internal
