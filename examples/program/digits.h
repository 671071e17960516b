#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

namespace program {

/// Handwritten digits: pixels [N, 1, side, side] of 0 to 1, fp32, and which digit each shows, int64
/// [N].
struct Digits {
  at::Tensor pixels, digit;

  int64_t side() const { return pixels.size(3); }
};

/// What to train on and what to test with, by other writers.
struct DigitSets {
  Digits train, test;
};

/// What --data is.
inline constexpr const char* kDigitsHelp =
    "directory of MNIST's four files, unpacked: train-images-idx3-ubyte, train-labels-idx1-ubyte, "
    "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; default: 1797 smaller digits that come with "
    "the examples";

/// The digits of MNIST's four files in `folder`; those that come with the examples
/// (examples/digits/DATA.md) if it is empty. Throws std::runtime_error that names the file, what is
/// wrong with it and the remedy.
DigitSets read_digits(const std::string& folder);

/// Which of `digits` the network gets right: bool [N]. A thousand at a time.
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
