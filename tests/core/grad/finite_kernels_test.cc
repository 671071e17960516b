#include "tessera/core/grad/finite_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <ATen/ATen.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FiniteKernels : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(FiniteKernels, CountNansAndInfinitiesOfTheRange) {
  for (const int64_t numel : {1, 2, 63, 64, 65, 1000}) {
    at::Tensor buffer = at::randn({numel + 2}).to(GetParam());
    EXPECT_EQ(count_non_finite(buffer, {0, numel + 2}), 0);
    buffer[0] = std::numeric_limits<double>::quiet_NaN();
    buffer[numel + 1] = std::numeric_limits<double>::infinity();
    EXPECT_EQ(count_non_finite(buffer, {1, numel}), 0) << numel;
    EXPECT_EQ(count_non_finite(buffer, {0, numel + 1}), 1) << numel;
    EXPECT_EQ(count_non_finite(buffer, {0, numel + 2}), 2) << numel;
    buffer.fill_(-std::numeric_limits<double>::infinity());
    EXPECT_EQ(count_non_finite(buffer, {1, numel}), numel);
    EXPECT_EQ(count_non_finite(buffer, {1, 0}), 0);
  }
}

TEST_P(FiniteKernels, TheLargestAndTheSmallestNumbersAreFinite) {
  const at::Tensor zero = at::zeros({1}, GetParam());
  const at::Tensor largest =
      at::nan_to_num(at::full({1}, std::numeric_limits<double>::infinity(), GetParam()));
  const at::Tensor smallest = at::nextafter(at::zeros({1}), at::ones({1})).to(GetParam());
  EXPECT_EQ(count_non_finite(at::cat({zero, -zero, largest, -largest, smallest}), {0, 5}), 0);
}

INSTANTIATE_TEST_SUITE_P(, FiniteKernels,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(FiniteKernelsMisuse, OtherDtypesAreRefused) {
  EXPECT_THAT(
      [] {
        count_non_finite(at::zeros({2}, at::kLong), {0, 2});
      },
      ThrowsMessage<c10::Error>(HasSubstr("[grad] count_non_finite: got Long")));
}

}  // namespace
}  // namespace tessera
