#include "tessera/core/step/norm_sum.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/core/step/clipping.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/core/step/gradient_norms.h"

namespace tessera::internal {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
const std::vector<int64_t> kNormSizes = {1000, 1, 0, 65, 7, 13, 64, 63, 5000};
const std::vector<double> kNormTypes = {0.5, 1.0, 2.0, 2.5, 3.0, kUnbounded};

/// Random gradients of the parameters in `layout`; the padding holds `padding`.
at::Tensor values_in(const FlatLayout& layout, double padding) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{7});
  at::Tensor buffer = at::full({layout.numel()}, padding, at::dtype(layout.dtype()));
  for (size_t i = 0; i < layout.parameters(); ++i) {
    const Range range = layout.parameter_range(i);
    buffer.narrow(0, range.begin, range.numel)
        .copy_(at::randn({range.numel}, generator, at::kDouble) * std::pow(4.0, i % 3));
  }
  return buffer;
}

/// Sums each slice alone, as a rank does; words are exchanged and merged from the last to the
/// first.
NormSum over_slices(const FlatLayout& layout, const at::Tensor& buffer, double p, double limit) {
  NormSum total(p);
  for (int slice = layout.slices() - 1; slice >= 0; --slice) {
    const Range range = layout.slice_range(slice);
    const at::Tensor own = buffer.narrow(0, range.begin, range.numel).clone();
    NormSum part(p);
    for (Segment segment : layout.segments(range)) {
      segment.buffer_offset -= range.begin;
      part.add(own, segment, limit);
    }
    std::array<int64_t, NormSum::kWords> words;
    part.store(words);
    total.merge(NormSum::load(p, words));
  }
  return total;
}

/// LibTorch's norm of the parameters' elements.
double torch_norm(const FlatLayout& layout, const at::Tensor& buffer, double p, double limit) {
  std::vector<at::Tensor> elements;
  for (size_t i = 0; i < layout.parameters(); ++i) {
    const Range range = layout.parameter_range(i);
    elements.push_back(buffer.narrow(0, range.begin, range.numel).to(at::kDouble));
  }
  return at::cat(elements).clamp(-limit, limit).norm(p).item<double>();
}

class NormSums : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(NormSums, HaveTheSameBitsHoweverTheBufferIsCutAndAreTorchsNorm) {
  for (const double p : kNormTypes) {
    for (const double limit : {kUnbounded, 0.75}) {
      const FlatLayout whole(GetParam(), kNormSizes, 1);
      const at::Tensor buffer = values_in(whole, 0.0);
      const double norm = over_slices(whole, buffer, p, limit).norm();
      const double expected = torch_norm(whole, buffer, p, limit);
      EXPECT_NEAR(norm, expected, 1e-13 * expected) << p << " " << limit;
      for (const int slices : {2, 3, 4, 5, 7, 8}) {
        const FlatLayout layout(GetParam(), kNormSizes, slices);
        EXPECT_EQ(over_slices(layout, values_in(layout, 1e4), p, limit).norm(), norm)
            << p << " " << limit << " " << slices;
      }
    }
  }
}

TEST_P(NormSums, SeeEveryNanAndInfinityClampedOrNot) {
  const FlatLayout layout(GetParam(), {100}, 1);
  for (const double p : kNormTypes) {
    for (const double limit : {kUnbounded, 0.75}) {
      for (const int64_t place : {0, 63, 64, 99}) {
        const at::Tensor buffer = values_in(layout, 0.0);
        buffer[place] = std::nan("");
        EXPECT_TRUE(std::isnan(over_slices(layout, buffer, p, limit).norm())) << p << " " << place;
        buffer[place] = -kUnbounded;
        EXPECT_EQ(over_slices(layout, buffer, p, limit).norm(), kUnbounded) << p << " " << place;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NormSums,
                         ::testing::Values(c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf));

TEST(NormSum, OfNothingIsZero) {
  for (const double p : kNormTypes) {
    NormSum sum(p);
    EXPECT_EQ(sum.norm(), 0.0);
    sum.add(at::empty({0}), {0, 0, 0, 0}, kUnbounded);
    sum.merge(NormSum(p));
    EXPECT_EQ(sum.norm(), 0.0);
  }
}

TEST(NormSum, OfTwoHasTheBitsOfSquares) {
  const at::Tensor buffer = values_in(FlatLayout(c10::kFloat, kNormSizes, 1), 0.0);
  ExactSum squares;
  add_squares(buffer, {0, 0, 0, 5000}, squares);
  NormSum sum;
  sum.add(buffer, {0, 0, 0, 5000}, kUnbounded);
  EXPECT_EQ(sum.norm(), std::sqrt(squares.value()));
  EXPECT_EQ(NormSum(squares).norm(), sum.norm());
  // A clamped sum equals that of clamped values.
  ExactSum of_clamped;
  add_squares(buffer.clamp(-0.5, 0.5), {0, 0, 0, 5000}, of_clamped);
  NormSum clamped;
  clamped.add(buffer, {0, 0, 0, 5000}, 0.5);
  EXPECT_EQ(clamped.norm(), std::sqrt(of_clamped.value()));
}

TEST(NormSum, ANanIsNeverGivenUpToALargerElement) {
  NormSum nan(kUnbounded);
  nan.add(at::full({1}, std::nan("")), {0, 0, 0, 1}, kUnbounded);
  NormSum large(kUnbounded);
  large.add(at::full({1}, 1e30F), {0, 0, 0, 1}, kUnbounded);
  NormSum one = nan;
  one.merge(large);
  EXPECT_TRUE(std::isnan(one.norm()));
  large.merge(nan);
  EXPECT_TRUE(std::isnan(large.norm()));
}

TEST(GradientNorms, AreOfEachGroupWithoutPadding) {
  const ParameterTable table({{"a", at::zeros({70}).set_requires_grad(true)},
                              {"b", at::zeros({3}).set_requires_grad(true)},
                              {"c", at::zeros({5}).set_requires_grad(true)}});
  const UnitPlan plan(table, {{"unit", {2, 0, 1}}}, /*slices=*/1);
  const at::Tensor value = at::full({plan[0].layout.numel()}, 100.0);
  for (const auto& [position, fill] : {std::pair(0, 5.0), std::pair(1, 7.0), std::pair(2, 2.0)}) {
    const Range range = plan[0].layout.parameter_range(position);
    value.narrow(0, range.begin, range.numel).fill_(fill);
  }
  const Clipping clipping{
      .norm_type = 1.0, .max_value = 1.5, .max_norms = {1.0, 1.0}, .group_of = {1, 0, 1}};
  GradientNorms norms(clipping, /*loss_scale=*/4.0);
  norms.add(plan[0], {0, plan[0].layout.numel()}, value, 0);
  EXPECT_EQ(norms.sums()[0].norm(), 3 * 2.0);             // b
  EXPECT_EQ(norms.sums()[1].norm(), 5 * 5.0 + 70 * 6.0);  // c, and a clamped at 1.5 * 4
}

TEST(NormSumNegativeControl, CutsInsideABlockWouldChangeBits) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{6});
  const at::Tensor buffer = at::randn({4096}, generator, at::kFloat);
  NormSum aligned(3.0);
  aligned.add(buffer, {0, 0, 0, 4096}, kUnbounded);
  NormSum cut(3.0);
  cut.add(buffer, {0, 0, 0, 33}, kUnbounded);
  cut.add(buffer, {0, 33, 0, 4063}, kUnbounded);
  std::array<int64_t, NormSum::kWords> words;
  std::array<int64_t, NormSum::kWords> words_of_cut;
  aligned.store(words);
  cut.store(words_of_cut);
  EXPECT_NE(words, words_of_cut);
  EXPECT_NEAR(aligned.norm(), cut.norm(), 1e-12 * aligned.norm());
}

}  // namespace
}  // namespace tessera::internal
