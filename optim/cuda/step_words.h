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
/// A pair (h, h * h) for each of the kAgreementPieces pieces h of a hash that must be equal on all
/// ranks. By Cauchy and Schwarz the sums over N ranks have N * sum(h * h) == sum(h)^2 if and only
/// if h is equal on all ranks.
inline constexpr int64_t kAgreementAt = kRefusalsAt + 1;
inline constexpr int kAgreementPieces = 3;
inline constexpr int kAgreementBits = 20;  ///< number of bits of a piece
/// One word per parameter of the table: how many elements of its gradient are NaN or infinite.
inline constexpr int64_t kNonFiniteAt = kAgreementAt + 2 * kAgreementPieces;
/// The largest number N of ranks in a world. Up to this number N * sum(h * h) fits into int64.
inline constexpr int kMaxRanks = 1024;

/// Returns where the use counts begin: one word per parameter of the table, the number of ranks
/// that used that parameter. They follow the counts at kNonFiniteAt.
TESSERA_DEVICE_CODE constexpr int64_t used_at(int64_t parameters) {
  return kNonFiniteAt + parameters;
}
TESSERA_DEVICE_CODE constexpr int64_t step_words(int64_t parameters) {
  return kNonFiniteAt + 2 * parameters;
}

}  // namespace tessera::internal::cuda
