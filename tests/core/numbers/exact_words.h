#pragma once

#include <array>
#include <cstdint>

#include "tessera/core/numbers/exact_sum.h"

namespace tessera::internal::testing {

/// All bits of a sum, including those that value() rounds away.
inline std::array<int64_t, ExactSum::kWords> words_of(const ExactSum& sum) {
  std::array<int64_t, ExactSum::kWords> words;
  sum.store(words);
  return words;
}

}  // namespace tessera::internal::testing
