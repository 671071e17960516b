#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Returns why the elements of a strided tensor cannot be read from memory, such as "its memory is
/// free". Returns "" if they can be read. Also returns "" for tensors that are not strided or have
/// no addresses (meta). Operators may still be able to read the tensor: tensors with lazy negation
/// or conjugation and lazy zeros do not have their values in memory. Local.
std::string reading_problem(const at::Tensor& tensor);

/// Returns `tensor`, or a copy with its values in memory if `tensor` is a lazy zero or its negation
/// or conjugation is lazy (at::_neg_view(), conj(), gradients of real() and imag()). For a sparse
/// COO tensor this applies to its values. Call it, or reading_problem(), before comparing a tensor
/// that came from outside, or taking its address. Local; costs nothing for tensors that are in
/// memory.
at::Tensor in_memory(const at::Tensor& tensor);

}  // namespace tessera::internal
