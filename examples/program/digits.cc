#include "tessera/examples/program/digits.h"

#include <fstream>
#include <stdexcept>

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>

#include "tessera/examples/program/idx_file.h"

namespace program {
namespace {

constexpr int64_t kDigits = 1797;
constexpr int64_t kDigitsToTrainOn = 1500;
constexpr int64_t kPixels = 64;
constexpr int64_t kLeastSide = 5;  // smallest image for two convolutions of width three

/// The digits that come with the examples.
DigitSets own_digits() {
  const std::string path = TESSERA_DIGITS;
  std::vector<char> bytes(static_cast<size_t>(kDigits * (kPixels + 1)));
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.gcount() != static_cast<std::streamsize>(bytes.size())) {
    throw std::runtime_error(absl::StrCat("[data] '", path, "': got ", file.gcount(),
                                          " bytes, expected ", bytes.size(),
                                          "; it is part of the source tree: check it out again"));
  }
  const at::Tensor rows =
      at::from_blob(bytes.data(), {kDigits, kPixels + 1}, at::kByte).to(at::kFloat);
  const at::Tensor pixels = rows.narrow(1, 0, kPixels).reshape({kDigits, 1, 8, 8}) / 16.0;
  const at::Tensor digit = rows.select(1, kPixels).to(at::kLong);
  constexpr int64_t kToTest = kDigits - kDigitsToTrainOn;
  return {.train = {pixels.narrow(0, 0, kDigitsToTrainOn), digit.narrow(0, 0, kDigitsToTrainOn)},
          .test = {pixels.narrow(0, kDigitsToTrainOn, kToTest),
                   digit.narrow(0, kDigitsToTrainOn, kToTest)}};
}

/// Reads the pair of files whose names begin with `name`.
Digits read_pair(const std::string& folder, const std::string& name) {
  const std::string images_path = absl::StrCat(folder, "/", name, "-images-idx3-ubyte");
  const std::string labels_path = absl::StrCat(folder, "/", name, "-labels-idx1-ubyte");
  const at::Tensor images = read_idx_file(images_path, 3);
  const at::Tensor labels = read_idx_file(labels_path, 1);
  const int64_t count = images.size(0);
  const int64_t side = images.size(1);
  if (side != images.size(2) || side < kLeastSide) {
    throw std::runtime_error(absl::StrCat("[data] '", images_path, "': got images of ", side, " x ",
                                          images.size(2), ", expected squares of ", kLeastSide,
                                          " or more; MNIST's are 28 x 28"));
  }
  if (labels.size(0) != count) {
    throw std::runtime_error(absl::StrCat("[data] '", labels_path, "': got ", labels.size(0),
                                          " labels, expected one for each of the ", count,
                                          " images in '", images_path,
                                          "'; take both from one "
                                          "data set"));
  }
  if (const int64_t most = labels.max().item<int64_t>(); most > 9) {
    throw std::runtime_error(absl::StrCat("[data] '", labels_path, "': got a label of ", most,
                                          ", expected digits, 0 to 9; take the labels of MNIST"));
  }
  return {.pixels = images.to(at::kFloat).reshape({count, 1, side, side}) / 255.0,
          .digit = labels.to(at::kLong)};
}

}  // namespace

DigitSets read_digits(const std::string& folder) {
  if (folder.empty()) return own_digits();
  DigitSets sets{.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
  if (sets.train.side() != sets.test.side()) {
    throw std::runtime_error(absl::StrCat("[data] '", folder, "': got images of ",
                                          sets.train.side(), " pixels a side to train on and of ",
                                          sets.test.side(),
                                          " to test with, expected one size; "
                                          "take both from one data set"));
  }
  return sets;
}

}  // namespace program
