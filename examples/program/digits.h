#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace program {

/// Handwritten digits (examples/digits/DATA.md): pixels [N, 1, 8, 8] of 0 to 1, fp32, and which
/// digit each shows, int64 [N].
struct Digits {
  at::Tensor pixels, digit;
};

/// All 1797 of the file that comes with the examples. Throws std::runtime_error that names the file
/// if it cannot be read or is not whole.
Digits read_digits();

/// The first 1500 of them, to train on; the others, by other writers, to test with.
constexpr int64_t kDigitsToTrainOn = 1500;
inline Digits training_part(const Digits& all) {
  return {all.pixels.narrow(0, 0, kDigitsToTrainOn), all.digit.narrow(0, 0, kDigitsToTrainOn)};
}
inline Digits test_part(const Digits& all) {
  const int64_t count = all.digit.size(0) - kDigitsToTrainOn;
  return {all.pixels.narrow(0, kDigitsToTrainOn, count),
          all.digit.narrow(0, kDigitsToTrainOn, count)};
}

}  // namespace program
