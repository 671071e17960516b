#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// A Newton-Schulz iteration that makes a matrix nearly orthogonal: all singular values become
/// about 1. Note that it does not converge with Muon's coefficients, which are chosen for speed.
struct NewtonSchulz {
  std::tuple<double, double, double> coefficients;
  int64_t steps;
  double eps;           ///< lower bound of the norm by which the matrix is first divided
  bool is_in_bfloat16;  ///< false: in the matrix's dtype

  /// Returns how many elements of scratch memory apply() needs for a [rows, cols] matrix.
  static int64_t scratch_numel(int64_t rows, int64_t cols);

  /// Replaces `matrix` [rows, cols], Float or Double in dense memory with any strides, by the
  /// iteration's result. Runs the operations of torch.optim.Muon and gets their bits. `scratch`: at
  /// least scratch_numel() elements of the matrix's dtype, one-dimensional. Allocates nothing but
  /// what LibTorch's operators do inside (docs/optimizers.md).
  void apply(const at::Tensor& matrix, const at::Tensor& scratch) const;
};

}  // namespace tessera::internal
