#pragma once

#include <cstdint>
#include <memory>

#include "tessera/comm_hook.h"

namespace tessera {

/// PyTorch's PowerSGDState, with its names and defaults.
struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;  ///< rank of the matrices that are sent; at least 1
  /// How many reducing backwards send gradients whole at first: compression hurts most in the
  /// beginning. At least 0; buckets never change, so 0 and 1 are allowed, too.
  int64_t start_power_sgd_iter = 1000;
  /// A parameter of n rows (its first dimension) and m columns (the others) is compressed if (n +
  /// m) * rank * min_compression_rate < n * m, rank being at most n and m. Above 0.
  double min_compression_rate = 2.0;
  /// Adds to each gradient the error that compressing earlier gradients has left. Takes memory of
  /// the size of the compressed gradients.
  bool use_error_feedback = true;
  /// Starts each compression from the last backward's Q instead of a random Q.
  bool warm_start = true;
  /// Added to norms that columns are divided by. A column of zeros stays zero. At least 0.
  double orthogonalization_epsilon = 0.0;
  uint64_t random_seed = 0;  ///< equal on all ranks
};

/// Returns a hook that sends each matrix M of the gradient as two thin matrices: P = M Q and, with
/// P made orthonormal, Q = M^T P, both summed over ranks. The engine goes on with P Q^T, the same
/// bits on all ranks. Other parameters are all-reduced, with the engine's bits. Source: Vogels et
/// al., PowerSGD, NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2; PyTorch's powerSGD_hook (not
/// batched). Traffic of a compressed parameter: (n + m) * rank elements instead of n * m, in three
/// collectives per bucket.
///
/// State (with its bytes in MemoryClass::kGradients): "<parameter>.error" [shape], "<parameter>.q"
/// [rank, m] and "iteration". Only the mean of the ranks' errors matters. So the mean is saved, and
/// saving (state_dict(), write_state(), checkpoints) gives it to every rank: training goes on with
/// the same sum, to rounding. A run that resumes on any number of ranks continues like the run that
/// saved, and on the same number of ranks with the same bits.
///
/// A gradient that is not finite reaches step() as NaN and leaves the state as it was. Refused on
/// all ranks when it is registered: options out of range, Options::loss_scale (errors and gradients
/// would differ in scale), gradients communicated in another dtype than fp32 or fp64.
std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace tessera
