#include "tessera/core/reduce/finite_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include <ATen/ATen.h>

namespace tessera::internal {
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

TEST_P(FiniteKernels, CopyAndCountAtOnce) {
  const auto infinity = std::numeric_limits<double>::infinity();
  for (const int64_t numel : {1, 63, 2048, 8191, 8192, 8193, 20001}) {
    const at::Tensor from = at::randn({numel}).to(GetParam());
    from[0] = -infinity;
    from[numel / 2] = std::numeric_limits<double>::quiet_NaN();
    from[numel - 1] = infinity;
    const at::Tensor buffer = at::full({numel + 2}, 7.0, GetParam());
    EXPECT_EQ(copy_counting_non_finite(buffer, {1, numel}, from.const_data_ptr()),
              count_non_finite(from, {0, numel}))
        << numel;
    EXPECT_EQ(std::memcmp(buffer.narrow(0, 1, numel).const_data_ptr(), from.const_data_ptr(),
                          from.nbytes()),
              0)
        << numel;
    EXPECT_EQ(buffer[0].item<double>(), 7.0);
    EXPECT_EQ(buffer[numel + 1].item<double>(), 7.0);
    EXPECT_EQ(copy_counting_non_finite(buffer, {1, 0}, from.const_data_ptr()), 0);
  }
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
}  // namespace tessera::internal
