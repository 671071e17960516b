#include "tessera/optim/algorithms/adamw_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

constexpr AdamwCoefficients kCoefficients = {.gradient_scale = 0.7,
                                             .decay = 0.999,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .step_size = 3e-3,
                                             .root_correction2 = 0.3,
                                             .eps = 1e-8};

template <typename T>
struct Arrays {
  explicit Arrays(size_t numel) : values(numel), gradient(numel), first(numel), second(numel) {
    std::mt19937_64 random(numel);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < numel; ++i) {
      values[i] = static_cast<T>(normal(random));
      gradient[i] = static_cast<T>(normal(random));
      first[i] = static_cast<T>(normal(random));
      second[i] = static_cast<T>(std::abs(normal(random)));
    }
  }

  void update(size_t begin, size_t end) {
    adamw_update(values.data() + begin, gradient.data() + begin, first.data() + begin,
                 second.data() + begin, nullptr, static_cast<int64_t>(end - begin), kCoefficients);
  }

  bool operator==(const Arrays&) const = default;

  std::vector<T> values;
  std::vector<T> gradient;
  std::vector<T> first;
  std::vector<T> second;
};

template <typename T>
class AdamwKernel : public ::testing::Test {};
using Dtypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AdamwKernel, Dtypes);

// Wide instructions, their remainders and single elements round alike, so slicing does not change
// bits.
TYPED_TEST(AdamwKernel, TheBitsDoNotDependOnLengthOrAddress) {
  for (size_t numel : {0u, 1u, 7u, 13u, 63u, 64u, 65u, 1000u}) {
    Arrays<TypeParam> whole(numel);
    whole.update(0, numel);
    for (size_t part : {1u, 3u, 16u, 64u}) {
      Arrays<TypeParam> cut(numel);
      for (size_t i = 0; i < numel; i += part) cut.update(i, std::min(i + part, numel));
      EXPECT_TRUE(cut == whole) << numel << " in parts of " << part;
    }
  }
}

TYPED_TEST(AdamwKernel, FollowsTheFormula) {
  Arrays<TypeParam> arrays(65);
  const Arrays<TypeParam> before = arrays;
  arrays.update(0, 65);
  const double tolerance = sizeof(TypeParam) == 4 ? 1e-5 : 1e-14;
  for (size_t i = 0; i < 65; ++i) {
    const AdamwCoefficients& c = kCoefficients;
    const double g = before.gradient[i] * c.gradient_scale;
    const double m = c.beta1 * before.first[i] + (1 - c.beta1) * g;
    const double v = c.beta2 * before.second[i] + (1 - c.beta2) * g * g;
    const double value =
        before.values[i] * c.decay - c.step_size * m / (std::sqrt(v) / c.root_correction2 + c.eps);
    EXPECT_NEAR(arrays.first[i], m, tolerance);
    EXPECT_NEAR(arrays.second[i], v, tolerance);
    EXPECT_NEAR(arrays.values[i], value, tolerance);
    EXPECT_EQ(arrays.gradient[i], before.gradient[i]) << "read only";
  }
}

TYPED_TEST(AdamwKernel, NegativeControlOneBitIsNoticed) {
  Arrays<TypeParam> a(64);
  Arrays<TypeParam> b(64);
  b.values[63] = std::nextafter(b.values[63], TypeParam{10});
  EXPECT_FALSE(a == b);
}

}  // namespace
}  // namespace tessera::internal
