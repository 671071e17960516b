// MNIST's files for the digits programs: valid and broken ones.
#include "tessera/examples/program/digits.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/temporary_directory.h"

namespace program {
namespace {

using tessera::internal::testing::message_of;
using tessera::internal::testing::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string idx(uint32_t magic, const std::vector<uint32_t>& sizes, const std::string& data) {
  std::string bytes;
  const auto append = [&](uint32_t word) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(word >> shift & 0xff);
  };
  append(magic);
  for (const uint32_t size : sizes) append(size);
  return bytes + data;
}

constexpr uint32_t kImages = 0x0803;
constexpr uint32_t kLabels = 0x0801;

class DigitsFiles : public ::testing::Test {
 protected:
  /// 6 images of 5 x 5 for training and 4 for testing; all pixels of image i have the value i.
  DigitsFiles() {
    write("train-images-idx3-ubyte", idx(kImages, {6, 5, 5}, images(6)));
    write("train-labels-idx1-ubyte", idx(kLabels, {6}, {0, 1, 2, 3, 4, 9}));
    write("t10k-images-idx3-ubyte", idx(kImages, {4, 5, 5}, images(4)));
    write("t10k-labels-idx1-ubyte", idx(kLabels, {4}, {5, 6, 7, 8}));
  }
  static std::string images(int count) {
    std::string data;
    for (int i = 0; i < count; ++i) data += std::string(25, static_cast<char>(i));
    return data;
  }
  std::string path(const std::string& name) const { return absl::StrCat(folder(), "/", name); }
  std::string folder() const { return directory_.path(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string error() const {
    return message_of([&] { read_digits(folder()); });
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(DigitsFiles, AreReadAsTheyAre) {
  const DigitSets sets = read_digits(folder());
  EXPECT_EQ(sets.train.pixels.sizes(), (at::IntArrayRef{6, 1, 5, 5}));
  EXPECT_EQ(sets.train.side(), 5);
  EXPECT_TRUE(at::equal(sets.train.digit, at::tensor({0, 1, 2, 3, 4, 9}, at::kLong)));
  EXPECT_TRUE(at::equal(sets.test.digit, at::tensor({5, 6, 7, 8}, at::kLong)));
  EXPECT_TRUE(at::equal(sets.test.pixels[3], at::full({1, 5, 5}, 3.0f) / 255.0));
}

TEST_F(DigitsFiles, AnyOfThemThatIsMissingIsNamed) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    std::filesystem::rename(path(name), path("away"));
    EXPECT_THAT(error(), AllOf(HasSubstr(path(name)), HasSubstr("No such file"),
                               HasSubstr("--data takes the directory")));
    std::filesystem::rename(path("away"), path(name));
  }
  EXPECT_EQ(error(), tessera::internal::testing::kNothingThrown);
  EXPECT_THAT(message_of([] { read_digits("/no/such/folder"); }), HasSubstr("/no/such/folder/"));
}

TEST_F(DigitsFiles, PackedOnesAreToBeUnpacked) {
  const std::string name = "train-labels-idx1-ubyte";
  std::filesystem::rename(path(name), path(name + ".gz"));
  EXPECT_THAT(error(), AllOf(HasSubstr("got only"), HasSubstr("gunzip -k '" + path(name + ".gz"))));
  write(name, "\x1f\x8b\x08 packed and renamed");
  EXPECT_THAT(error(), AllOf(HasSubstr(path(name)), HasSubstr("got a gzip file")));
}

TEST_F(DigitsFiles, AreNoDirectory) {
  std::filesystem::remove(path("t10k-images-idx3-ubyte"));
  std::filesystem::create_directory(path("t10k-images-idx3-ubyte"));
  EXPECT_THAT(error(), HasSubstr("got a directory"));
}

TEST_F(DigitsFiles, OfAnotherKindAreRefused) {
  write("train-images-idx3-ubyte", idx(kLabels, {6}, {0, 1, 2, 3, 4, 9, 0, 0, 0, 0, 0, 0}));
  EXPECT_THAT(error(), AllOf(HasSubstr("begins with 00000801, expected 00000803"),
                             HasSubstr("another of the four files?")));
  write("train-images-idx3-ubyte", idx(0x0d03, {6, 5, 5}, images(6)));  // floats
  EXPECT_THAT(error(), HasSubstr("begins with 00000d03"));
}

TEST_F(DigitsFiles, ThatAreNotWholeAreRefused) {
  const std::string whole = idx(kImages, {6, 5, 5}, images(6));
  for (const size_t bytes : {size_t{0}, size_t{3}, size_t{15}}) {
    write("train-images-idx3-ubyte", whole.substr(0, bytes));
    EXPECT_THAT(error(), HasSubstr(absl::StrCat("got ", bytes, " bytes, expected 16 at least")));
  }
  for (const size_t bytes : {size_t{16}, whole.size() - 1, whole.size() - 25}) {
    write("train-images-idx3-ubyte", whole.substr(0, bytes));
    EXPECT_THAT(error(), AllOf(HasSubstr(absl::StrCat("got ", bytes - 16, " bytes of data")),
                               HasSubstr("expected 6 x 5 x 5")));
  }
  write("train-images-idx3-ubyte", whole + "x");
  EXPECT_THAT(error(), HasSubstr("got 151 bytes of data"));
}

TEST_F(DigitsFiles, SizesThatNoFileHasAreRefused) {
  // 2^64 bytes, which is 0 modulo 2^64; then no bytes at all.
  write("train-images-idx3-ubyte", idx(kImages, {0x80000000, 0x80000000, 4}, ""));
  EXPECT_THAT(error(), HasSubstr("expected 2147483648 x 2147483648 x 4"));
  write("train-images-idx3-ubyte", idx(kImages, {0, 5, 5}, ""));
  EXPECT_THAT(error(), HasSubstr("none of them 0"));
}

TEST_F(DigitsFiles, ThatDoNotFitEachOtherAreRefused) {
  write("train-labels-idx1-ubyte", idx(kLabels, {5}, {0, 1, 2, 3, 4}));
  EXPECT_THAT(error(), AllOf(HasSubstr("got 5 labels"), HasSubstr("each of the 6 images")));
  write("train-labels-idx1-ubyte", idx(kLabels, {6}, {0, 1, 2, 3, 4, 10}));
  EXPECT_THAT(error(), HasSubstr("got a label of 10"));
  write("train-labels-idx1-ubyte", idx(kLabels, {6}, {0, 1, 2, 3, 4, 9}));
  write("t10k-images-idx3-ubyte", idx(kImages, {4, 6, 6}, std::string(144, '\0')));
  EXPECT_THAT(error(), HasSubstr("5 pixels a side to train on and of 6"));
  write("t10k-images-idx3-ubyte", idx(kImages, {4, 5, 6}, std::string(120, '\0')));
  EXPECT_THAT(error(), HasSubstr("images of 5 x 6, expected squares"));
}

TEST(Digits, WithoutADirectoryAreThoseOfTheExamples) {
  const DigitSets sets = read_digits("");
  EXPECT_EQ(sets.train.digit.size(0), 1500);
  EXPECT_EQ(sets.test.digit.size(0), 297);
  EXPECT_EQ(sets.train.side(), 8);
  EXPECT_EQ(sets.train.pixels.max().item<float>(), 1.0f);
}

/// Answers 1 to every image that is brighter than 0.5.
struct Brightness {
  at::Tensor forward(const at::Tensor& pixels) const {
    const at::Tensor mean = pixels.flatten(1).mean(1);
    return at::stack({mean.new_full({mean.size(0)}, 0.5), mean}, 1);
  }
};

TEST(Digits, AreJudgedInParts) {
  const Digits many{.pixels = at::linspace(0, 1, 2501).reshape({2501, 1, 1, 1}),
                    .digit = at::ones({2501}, at::kLong)};
  auto net = std::make_shared<Brightness>();
  const at::Tensor right = right_answers(net, many);
  EXPECT_EQ(right.numel(), 2501);
  EXPECT_EQ(right.sum().item<int64_t>(), 1250);
}

}  // namespace
}  // namespace program
