#pragma once

#include <cstdint>

#include "tessera/core/numbers/device_code.h"
#include "tessera/core/numbers/exact_digits.h"

// The layout of the int64 words that ranks add up before a step. After one SUM all_reduce of the
// words every rank knows all that the step depends on.
namespace tessera::internal::cuda {

/// The sum of the squares, an ExactSum: kExactWords words.
inline constexpr int64_t kSquaresAt = 0;
/// The number of ranks that refuse the step.
inline constexpr int64_t kRefusalsAt = static_cast<int64_t>(kExactWords);
/// Pairs (h, h * h) of the pieces of a hash that must be equal on all ranks: by Cauchy and Schwarz
/// the sums over N ranks have N * sum(h * h) == sum(h)^2 if and only if all h are equal.
inline constexpr int64_t kAgreementAt = kRefusalsAt + 1;
inline constexpr int kAgreementPieces = 3;
inline constexpr int kAgreementBits = 20;  ///< of a piece
/// Per parameter of the table: how many of its elements are NaN or infinite.
inline constexpr int64_t kNonFiniteAt = kAgreementAt + 2 * kAgreementPieces;
/// Up to this many ranks N * sum(h * h) fits into int64.
inline constexpr int kMaxRanks = 1024;

/// After the counts, per parameter of the table: how many ranks used it.
TESSERA_DEVICE_CODE constexpr int64_t used_at(int64_t parameters) {
  return kNonFiniteAt + parameters;
}
TESSERA_DEVICE_CODE constexpr int64_t step_words(int64_t parameters) {
  return kNonFiniteAt + 2 * parameters;
}

}  // namespace tessera::internal::cuda
