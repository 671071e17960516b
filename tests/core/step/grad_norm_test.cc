#include "tessera/core/step/grad_norm.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/step/clip_factor.h"
#include "tessera/tests/core/numbers/exact_words.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::words_of;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

const std::vector<int64_t> kNumels = {1000, 1, 0, 65, 7, 13, 64, 63, 5000};

/// Gradients of many magnitudes at the places of `layout`; the padding holds `padding`.
at::Tensor gradients_in(const FlatLayout& layout, double padding) {
  at::manual_seed(5);
  const at::Tensor buffer = at::full({layout.numel()}, padding, at::dtype(layout.dtype()));
  for (size_t i = 0; i < layout.parameters(); ++i) {
    const Range range = layout.parameter_range(i);
    const at::Tensor values =
        at::randn({range.numel}, at::kDouble) * std::pow(10.0, static_cast<double>(i % 3) - 1);
    buffer.narrow(0, range.begin, range.numel).copy_(values);
  }
  return buffer;
}

/// Sums each slice alone, as a rank does, from its own buffer; merges the parts from the last to
/// the first.
ExactSum squares_over_slices(const FlatLayout& layout, const at::Tensor& buffer) {
  ExactSum total;
  for (int slice = layout.slices() - 1; slice >= 0; --slice) {
    const Range range = layout.slice_range(slice);
    const at::Tensor own = buffer.narrow(0, range.begin, range.numel).clone();
    ExactSum part;
    for (Segment segment : layout.segments(range)) {
      segment.buffer_offset -= range.begin;
      add_squares(own, segment, part);
    }
    total.merge(part);
  }
  return total;
}

class GradNormProperty : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(GradNormProperty, HasTheSameBitsHoweverTheBufferIsCutAndIgnoresPadding) {
  const FlatLayout whole(GetParam(), kNumels, 1);
  const at::Tensor reference_buffer = gradients_in(whole, 0.0);
  const ExactSum squares = squares_over_slices(whole, reference_buffer);
  const double reference = reference_buffer.to(at::kDouble).norm().item<double>();
  EXPECT_NEAR(std::sqrt(squares.value()), reference, 1e-14 * reference);
  for (int slices : {2, 3, 4, 5, 7, 8}) {
    const FlatLayout layout(GetParam(), kNumels, slices);
    const ExactSum cut = squares_over_slices(layout, gradients_in(layout, 1e4));
    EXPECT_EQ(words_of(cut), words_of(squares)) << slices;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GradNormProperty,
                         ::testing::Values(c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf));

TEST(GradNorm, ThreeFourFive) {
  const at::Tensor buffer = at::zeros({128});
  buffer[0] = 3.0f;
  buffer[64] = 4.0f;
  ExactSum sum;
  add_squares(buffer, {0, 0, 0, 65}, sum);
  EXPECT_EQ(sum.value(), 25.0);
}

TEST(GradNorm, SquaresOfFloatsNeitherOverflowNorVanish) {
  const at::Tensor buffer = at::full({64}, 3e38f);
  buffer.slice(0, 32).fill_(1e-44f);
  ExactSum sum;
  add_squares(buffer, {0, 0, 0, 1}, sum);
  EXPECT_EQ(sum.value(), static_cast<double>(3e38f) * static_cast<double>(3e38f));
  ExactSum small;
  add_squares(buffer, {0, 32, 0, 1}, small);
  EXPECT_GT(small.value(), 0.0);
}

TEST(GradNorm, NonFiniteGradientsShowInTheNorm) {
  for (int64_t place : {0, 63, 64, 99}) {
    const at::Tensor buffer = at::ones({128});
    buffer[place] = std::numeric_limits<float>::quiet_NaN();
    ExactSum sum;
    add_squares(buffer, {0, 0, 0, 100}, sum);
    EXPECT_TRUE(std::isnan(sum.value())) << place;
    buffer[place] = -std::numeric_limits<float>::infinity();
    ExactSum infinite;
    add_squares(buffer, {0, 0, 0, 100}, infinite);
    EXPECT_EQ(infinite.value(), kInfinite) << place;
  }
  const at::Tensor buffer = at::ones({128});
  buffer[100] = std::numeric_limits<float>::quiet_NaN();
  ExactSum sum;
  add_squares(buffer, {0, 0, 0, 100}, sum);
  EXPECT_EQ(sum.value(), 100.0) << "padding is not read";
}

TEST(GradNorm, ClipFactorIsTorchs) {
  EXPECT_EQ(clip_factor(2.0, 1.0), 1.0 / (2.0 + 1e-6));
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0 / (1.0 + 1e-6));
  EXPECT_EQ(clip_factor(5.0, kInfinite), 1.0);
  EXPECT_EQ(clip_factor(kInfinite, 1.0), 0.0);
  EXPECT_TRUE(std::isnan(clip_factor(std::nan(""), 1.0)));
}

TEST(GradNorm, WrongArgumentsAreRefused) {
  const auto message_of = [](const at::Tensor& buffer, Segment segment) -> std::string {
    try {
      ExactSum sum;
      add_squares(buffer, segment, sum);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of(at::zeros({8, 8}), {0, 0, 0, 8}),
              HasSubstr("[grad_norm] buffer: got 2 dimensions on cpu"));
  EXPECT_THAT(message_of(at::zeros({64}), {0, 60, 0, 8}),
              HasSubstr("[grad_norm] segment: got elements 60 to 68, expected a part of 0 to 64"));
  EXPECT_THAT(message_of(at::zeros({64}), {0, 0, 5, 8}),
              HasSubstr("got parameter offset 5, expected a multiple of 64"));
  EXPECT_THAT(message_of(at::zeros({64}, at::kLong), {0, 0, 0, 8}),
              HasSubstr("[grad_norm] dtype: got Long, expected Float"));
}

TEST(GradNormNegativeControl, CutsInsideABlockWouldChangeBits) {
  // Note [Padding] prevents this: the same elements in blocks that start elsewhere.
  at::manual_seed(6);
  const at::Tensor buffer = at::randn({4096});
  ExactSum aligned;
  add_squares(buffer, {0, 0, 0, 4096}, aligned);
  ExactSum cut;
  add_squares(buffer, {0, 0, 0, 33}, cut);
  add_squares(buffer, {0, 33, 0, 4063}, cut);
  EXPECT_NE(words_of(aligned), words_of(cut));
  EXPECT_NEAR(aligned.value(), cut.value(), 1e-12 * aligned.value());
}

}  // namespace
}  // namespace tessera::internal
