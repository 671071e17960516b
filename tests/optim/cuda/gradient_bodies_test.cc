// The gradient kernels' bodies, compared with core's functions on the CPU.
#include "tessera/optim/cuda/gradient_bodies.h"

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/reduce/finite_kernels.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/core/step/grad_norm_kernels.h"
#include "tessera/flat_layout.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/tests/optim/cuda/emulation.h"
#include "tessera/tests/optim/cuda/exact_words.h"

namespace tessera::internal::cuda {
namespace {

static_assert(kSquareBlockElements == kSquareBlockNumel);

template <typename T>
constexpr c10::ScalarType kDtype = c10::kFloat;
template <>
constexpr c10::ScalarType kDtype<BFloat16> = c10::kBFloat16;
template <>
constexpr c10::ScalarType kDtype<Half> = c10::kHalf;

template <typename T>
T* data_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Gradients of very different magnitudes, in [numel] of T.
template <typename T>
at::Tensor make_gradient(int64_t numel, uint64_t seed = 1) {
  at::Tensor gradient = at::zeros({numel}, kDtype<T>);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  for (int64_t i = 0; i < numel; ++i) {
    data_of<T>(gradient)[i] = narrow<T>(std::ldexp(normal(random), exponent(random)));
  }
  return gradient;
}

template <typename T>
class GradientBodies : public ::testing::Test {};
using Dtypes = ::testing::Types<float, BFloat16, Half>;
TYPED_TEST_SUITE(GradientBodies, Dtypes);

TYPED_TEST(GradientBodies, AccumulateAddsInFp32) {
  for (const int64_t numel : {0, 1, 5, 1003}) {
    for (int64_t offset = 0; offset < 4; ++offset) {
      const at::Tensor gradient = make_gradient<TypeParam>(numel + offset);
      for (const Launch& launch : kLaunches) {
        std::vector<float> sum(static_cast<size_t>(numel + offset), 0.125F);
        run_workers(launch.blocks * launch.threads, [&](Worker thread) {
          accumulate_body(sum.data() + offset, data_of<TypeParam>(gradient) + offset, numel,
                          thread);
        });
        for (int64_t i = 0; i < numel + offset; ++i) {
          const float more = i < offset ? 0.0F : widen(data_of<TypeParam>(gradient)[i]);
          ASSERT_EQ(sum[static_cast<size_t>(i)], 0.125F + more) << i;
        }
      }
    }
  }
}

TYPED_TEST(GradientBodies, CastGivesTheBitsOfLibTorch) {
  for (int64_t offset = 0; offset < 4; ++offset) {
    const int64_t numel = 1003;
    const at::Tensor values = make_gradient<float>(numel);
    const at::Tensor expected = values.to(kDtype<TypeParam>);
    for (const Launch& launch : kLaunches) {
      const at::Tensor target = at::zeros({numel + offset}, kDtype<TypeParam>);
      run_workers(launch.blocks * launch.threads, [&](Worker thread) {
        cast_body(data_of<TypeParam>(target) + offset, values.const_data_ptr<float>(), numel,
                  thread);
      });
      EXPECT_TRUE(target.narrow(0, offset, numel).equal(expected)) << offset;
    }
  }
}

TYPED_TEST(GradientBodies, CountsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor gradient = make_gradient<TypeParam>(1003);
  for (const auto& [at, value] :
       {std::pair{0, kNan}, {1, kInfinity}, {2, -kInfinity}, {700, kNan}, {1002, -kInfinity}}) {
    data_of<TypeParam>(gradient)[at] = narrow<TypeParam>(value);
  }
  // Parameter 1 has no gradient; parameter 3 is in no piece.
  const std::vector<Piece> pieces = {{0, 65, 0}, {128, 300, 1}, {447, 513, 2}, {960, 43, 0}};
  for (int64_t offset = 0; offset < 4; ++offset) {
    for (const Launch& launch : kLaunches) {
      PlainWords counts;
      run_workers(launch.blocks, [&](Worker block) {
        run_workers(launch.threads, [&](Worker thread) {
          count_body(data_of<TypeParam>(gradient) + offset, pieces.data(), 3, block, thread,
                     counts);
        });
      });
      std::vector<int64_t> expected(kExactWords, 0);
      for (size_t i = 0; i < 3; ++i) {
        expected[static_cast<size_t>(pieces[i].parameter)] +=
            count_non_finite(gradient, {pieces[i].begin + offset, pieces[i].numel});
      }
      EXPECT_EQ(counts.words, expected) << offset;
      EXPECT_EQ(expected[1], 0);
      EXPECT_EQ(expected[2], 1);
      EXPECT_EQ(expected[0], offset < 3 ? 3 - offset : 0);
    }
  }
  PlainWords with_tail;
  count_body(data_of<TypeParam>(gradient), pieces.data(), 4, {0, 1}, {0, 1}, with_tail);
  EXPECT_EQ(with_tail.words[0], 4) << "several pieces of a parameter add up";
}

template <typename T>
std::vector<int64_t> squares(const at::Tensor& gradient, const std::vector<Piece>& pieces,
                             Launch launch) {
  PlainWords sink;
  run_workers(launch.blocks, [&](Worker block) {
    run_workers(launch.threads, [&](Worker group) {
      square_body(data_of<T>(gradient), pieces.data(), static_cast<int64_t>(pieces.size()), block,
                  group, SerialLanes(), sink);
    });
  });
  exact_normalize(sink.words.data());
  return sink.words;
}

const std::vector<int64_t> kGradientNumels = {1, 63, 64, 65, 9001, 4096, 130};

// The communicated words, and so the norm, equal the CPU's for any launch and, summed over slices,
// for any slicing.
TYPED_TEST(GradientBodies, SquaresGiveTheWordsOfTheCpu) {
  const FlatLayout whole(kDtype<TypeParam>, kGradientNumels, 3);
  const at::Tensor gradient = make_gradient<TypeParam>(whole.numel());
  std::vector<int64_t> added(kExactWords, 0);
  for (int slice = 0; slice < 3; ++slice) {
    const std::vector<Segment> segments = whole.segments(whole.slice_range(slice));
    ExactSum expected;
    for (const Segment& segment : segments) add_squares(gradient, segment, expected);
    const std::vector<Piece> pieces = cut_into_pieces(segments);
    for (const Launch& launch : kLaunches) {
      EXPECT_EQ(squares<TypeParam>(gradient, pieces, launch), words_of(expected)) << slice;
    }
    const std::vector<int64_t> own = squares<TypeParam>(gradient, pieces, {3, 32});
    for (size_t i = 0; i < kExactWords; ++i) added[i] += own[i];
  }
  exact_normalize(added.data());
  ExactSum all;
  for (const Segment& segment : whole.segments({0, whole.numel()})) {
    add_squares(gradient, segment, all);
  }
  EXPECT_EQ(added, words_of(all));
}

TYPED_TEST(GradientBodies, SquaresRememberWhatIsNotFinite) {
  const at::Tensor gradient = make_gradient<TypeParam>(256);
  data_of<TypeParam>(gradient)[100] = narrow<TypeParam>(std::numeric_limits<float>::infinity());
  data_of<TypeParam>(gradient)[200] = narrow<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  ExactSum expected;
  add_squares(gradient, {0, 0, 0, 256}, expected);
  std::vector<int64_t> words = squares<TypeParam>(gradient, {{0, 256, 0}}, {3, 32});
  EXPECT_EQ(words, words_of(expected));
  EXPECT_TRUE(std::isnan(exact_value(words.data())));
}

// One large element: adding a small element's square to its square rounds the small one away.
TYPED_TEST(GradientBodies, NegativeControlAnotherOrderOrAMissingRoundIsNoticed) {
  const at::Tensor gradient = at::zeros({64}, kDtype<TypeParam>);
  for (int i = 0; i < 64; ++i) {
    data_of<TypeParam>(gradient)[i] = narrow<TypeParam>(i == 0 ? 8.0F : 0x1p-24F);
  }
  double straight = 0;
  for (int i = 0; i < 64; ++i) {
    const double value = widen(data_of<TypeParam>(gradient)[i]);
    straight += value * value;
  }
  EXPECT_EQ(straight, 64.0);
  ExactSum other;
  other.add(straight);
  const std::vector<int64_t> words = squares<TypeParam>(gradient, {{0, 64, 0}}, {1, 1});
  EXPECT_NE(words, words_of(other));
  EXPECT_NE(words, squares<TypeParam>(gradient, {{0, 56, 0}}, {1, 1}));
}

}  // namespace
}  // namespace tessera::internal::cuda
