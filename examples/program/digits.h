#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

namespace program {

/// Handwritten digits: pixels [N, 1, side, side] from 0 to 1, fp32, and labels, int64 [N].
struct Digits {
  at::Tensor pixels, digit;

  int64_t side() const { return pixels.size(3); }
};

/// A training set and a test set.
struct DigitSets {
  Digits train, test;
};

/// The help text of --data.
inline constexpr const char* kDigitsHelp =
    "directory of MNIST's four files, unpacked: train-images-idx3-ubyte, train-labels-idx1-ubyte, "
    "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; default: 1797 smaller digits that come with "
    "the examples";

/// Reads the digits of MNIST's four files in `folder`. If `folder` is "", reads the digits that
/// come with the examples (examples/digits/DATA.md). Throws std::runtime_error that names the file,
/// the problem and the remedy.
DigitSets read_digits(const std::string& folder);

/// Returns which of `digits` the network classifies correctly: bool [N]. Runs a thousand at a time.
template <typename Net>
at::Tensor right_answers(Net& net, const Digits& digits) {
  constexpr int64_t kPart = 1000;
  std::vector<at::Tensor> right;
  for (int64_t begin = 0; begin < digits.digit.size(0); begin += kPart) {
    const at::Tensor answers = net->forward(digits.pixels.slice(0, begin, begin + kPart)).argmax(1);
    right.push_back(answers.eq(digits.digit.slice(0, begin, begin + kPart)));
  }
  return at::cat(right);
}

}  // namespace program
