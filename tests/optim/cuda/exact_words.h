#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/core/numbers/exact_sum.h"

namespace tessera::internal::cuda {

/// The words of `sum`, as kernels add them up.
inline std::vector<int64_t> words_of(const ExactSum& sum) {
  std::array<int64_t, ExactSum::kWords> words;
  sum.store(words);
  return {words.begin(), words.end()};
}

}  // namespace tessera::internal::cuda
