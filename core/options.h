#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "tessera/core/strategy.h"

namespace tessera {

/// How an engine trains. A plain aggregate: name the fields you change. All ranks must pass the
/// same values; parallelize compares them.
struct Options {
  // --- What is sharded (changes memory and traffic, never results) ---

  /// Default kDdp. kZero3 is not available yet and refused.
  Strategy strategy = Strategy::kDdp;

  // --- Numerics (changes results) ---

  /// Gradients are scaled down to this global 2-norm before the update. Range (0, infinity];
  /// infinity, the default, does not clip.
  double max_grad_norm = std::numeric_limits<double>::infinity();

  // --- Performance (changes speed and peak memory only) ---

  /// Bytes of parameters per bucket. Range [1 KiB, 2 GiB]. Larger buckets mean fewer collectives
  /// and larger landing buffers. The first bucket to be ready in backward is smaller so that
  /// reduction starts early.
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;

  // --- Diagnostics (change nothing but speed) ---

  /// Fills every landing buffer with NaN when it is freed, so that a read that comes too early or
  /// too late shows.
  bool poison_freed = false;
};

/// OK, or an InvalidArgument status that lists every field out of range as "field: value; allowed;
/// what to do".
absl::Status validate(const Options& options);

/// One line per field for comparison across ranks.
std::vector<std::string> lines(const Options& options);

}  // namespace tessera
