#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Makes the rows of `rows` [r, n] (fp32 or fp64, contiguous) orthonormal, one after the other.
/// Uses Gram-Schmidt twice on each row, because after one pass nearly dependent rows consist of
/// rounding errors (Giraud et al., 2005). A row that depends on earlier ones becomes zero; others
/// are divided by their norm plus `epsilon`. The bits depend on the arguments only. Local.
void orthonormalize(const at::Tensor& rows, double epsilon);

/// Sets matrix[i, j] to the sum over k of left[k, i] * right[k, j]. `left` [r, n], `right` [r, m]
/// and `matrix` [n, m] are contiguous and of one dtype. If `error` [n, m] is defined, it becomes
/// the old `matrix` minus `scale` times the new one. The bits depend on the arguments only. Local.
void expand(const at::Tensor& left, const at::Tensor& right, const at::Tensor& matrix,
            const at::Tensor& error, double scale);

}  // namespace tessera::internal
