#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Makes the rows of `rows` [r, n] (fp32 or fp64, contiguous) orthonormal, one after the other: by
/// Gram-Schmidt, each row twice, because one pass leaves what rounding makes of nearly dependent
/// rows (Giraud et al., 2005). A row that depends on the ones before becomes zero; each other is
/// divided by its norm plus `epsilon`. The bits depend on the arguments only. Local.
void orthonormalize(const at::Tensor& rows, double epsilon);

/// matrix[i, j] = sum over k of left[k, i] * right[k, j], of left [r, n], right [r, m] and `matrix`
/// [n, m], all contiguous, of one dtype. Where `error` [n, m] is defined it gets what `matrix` held
/// before minus `scale` times the result. The bits depend on the arguments only. Local.
void expand(const at::Tensor& left, const at::Tensor& right, const at::Tensor& matrix,
            const at::Tensor& error, double scale);

}  // namespace tessera::internal
