#pragma once

#include <cstdint>
#include <memory>

#include "tessera/comm_hook.h"

namespace tessera {

/// PyTorch's PowerSGDState, with its names and defaults.
struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;  ///< rank of the matrices that are sent; at least 1
  /// The number of backwards, at the beginning of the run, whose reductions send gradients
  /// uncompressed, because compression hurts most in the beginning. At least 0. (PyTorch can refuse
  /// 0 and 1, because its buckets change after the first backward; Tessera's do not.)
  int64_t start_power_sgd_iter = 1000;
  /// A parameter of n rows (its first dimension) and m columns (the others) is compressed if (n +
  /// m) * rank * min_compression_rate < n * m. Here rank is matrix_approximation_rank, or n or m if
  /// that is less. Above 0.
  double min_compression_rate = 2.0;
  /// If true, adds to each gradient the error that the compression of earlier gradients has left.
  /// Takes memory of the size of the compressed gradients.
  bool use_error_feedback = true;
  /// If true, each compression starts from the Q of the last backward instead of a random Q.
  bool warm_start = true;
  /// Added to the norm by which a column is divided. A column of zeros stays zero. At least 0.
  double orthogonalization_epsilon = 0.0;
  uint64_t random_seed = 0;  ///< equal on all ranks
};

/// Returns a hook that sends each matrix M of the gradient as two thin matrices: P = M Q and, with
/// P made orthonormal, Q = M^T P, both summed over ranks. The engine goes on with P Q^T as the
/// reduced gradient, with the same bits on all ranks. Gradients that are not compressed are
/// all-reduced, with the bits that they have without a hook. Source: Vogels et al., PowerSGD,
/// NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2; PyTorch's powerSGD_hook (not batched).
/// Traffic of a compressed parameter: (n + m) * rank elements instead of n * m, in three
/// collectives per bucket.
///
/// State (with its bytes in MemoryClass::kGradients): "<parameter>.error" [shape], "<parameter>.q"
/// [rank, m] and "iteration". Each rank has an error of its own, but only their mean matters. So a
/// save (state_dict(), write_state(), checkpoints) stores the mean, and sets every rank's error to
/// it: the sum over ranks stays the same, to rounding. A run that resumes on any number of ranks
/// continues like the run that saved, and on the same number of ranks with the same bits.
///
/// A gradient that is not finite reaches step() as NaN and leaves the state as it was. Refused on
/// all ranks when it is registered: options out of range, Options::loss_scale (errors and gradients
/// would differ in scale), gradients communicated in another dtype than fp32 or fp64.
std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace tessera
