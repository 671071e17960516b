// Compares sums of fp32 and fp64 in tree order with one addition at a time: the same bits for every
// length, alignment, number of ranks and kind of store.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/core/comm/kernels/reduce_kernels.h"

namespace tessera::internal::kernels {
namespace {

constexpr int64_t kTreeLengths[] = {0, 1, 15, 16, 64, 65, 129, 1000, 4097};
constexpr int64_t kTreeMargin = 32;

template <typename T>
class TreeSum : public ::testing::Test {
 protected:
  using Sources = std::vector<std::vector<T>>;

  Sources make_sources(int ranks, int64_t numel) {
    Sources sources(ranks);
    std::uniform_real_distribution<T> mantissa(-1, 1);
    for (auto& source : sources) {
      for (int64_t i = 0; i < numel + kTreeMargin; ++i) {
        source.push_back(std::ldexp(mantissa(random_), static_cast<int>(random_() % 20)));
      }
    }
    return sources;
  }

  /// Sums element `i` of ranks [first, first + count), halves first.
  static T tree(const Sources& sources, size_t i, size_t first, size_t count) {
    if (count == 1) return sources[first][i];
    const volatile T left = tree(sources, i, first, count / 2);
    const volatile T right = tree(sources, i, first + count / 2, count / 2);
    return left + right;
  }

  /// Sums from element `offset` on.
  static std::vector<T> sum(ReduceOp op, const Sources& sources, int64_t offset, int64_t numel,
                            Stores stores, SumOrder order, size_t target_count = 1) {
    std::vector<const char*> from;
    for (const auto& source : sources) {
      from.push_back(reinterpret_cast<const char*>(source.data() + offset));
    }
    std::vector<std::vector<T>> results(target_count, std::vector<T>(numel + kTreeMargin, T(-7)));
    std::vector<char*> to;
    for (auto& result : results) to.push_back(reinterpret_cast<char*>(result.data() + offset));
    reduce(c10::CppTypeToScalarType<T>::value, op, from.data(), static_cast<int>(from.size()),
           to.data(), static_cast<int>(to.size()), numel, stores, /*divisor=*/0.0, order);
    for (const auto& result : results) {
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(T)), 0);
      EXPECT_EQ(result[numel + offset], T(-7)) << "written behind the end";
    }
    return results.back();
  }

  std::mt19937 random_{21};
};

using TreeTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(TreeSum, TreeTypes);

TYPED_TEST(TreeSum, AnywhereAndByAnyStoreTheBitsAreThoseOfTheTree) {
  using T = TypeParam;
  for (const int ranks : {1, 2, 4, 8, 16, 32, 64}) {
    for (const int64_t numel : kTreeLengths) {
      const auto sources = this->make_sources(ranks, numel);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        for (const int64_t offset : {0, 1, 7}) {
          std::vector<T> right(numel);
          for (int64_t i = 0; i < numel; ++i) {
            right[i] = this->tree(sources, i + offset, 0, ranks);
            if (op == ReduceOp::kAvg) right[i] /= static_cast<T>(ranks);
          }
          for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
            const size_t targets = stores == Stores::kCached ? 3 : 1;
            const auto got =
                this->sum(op, sources, offset, numel, stores, SumOrder::kBinaryTree, targets);
            EXPECT_TRUE(numel == 0 ||
                        std::memcmp(got.data() + offset, right.data(), numel * sizeof(T)) == 0)
                << ranks << " ranks, " << numel << " elements from " << offset;
          }
        }
      }
    }
  }
}

TYPED_TEST(TreeSum, RankOrderDiffersAndTwoRanksHaveOneOrder) {
  for (const int ranks : {2, 4, 8}) {
    const auto sources = this->make_sources(ranks, 1000);
    const auto in = [&](SumOrder order) {
      return this->sum(ReduceOp::kSum, sources, 0, 1000, Stores::kCached, order);
    };
    EXPECT_EQ(in(SumOrder::kBinaryTree) == in(SumOrder::kRanks), ranks == 2) << ranks;
  }
}

/// The sum of two groups' sums is the sum of both groups.
TYPED_TEST(TreeSum, PartialTreesCompose) {
  using T = TypeParam;
  const auto sources = this->make_sources(8, 1000);
  const auto in_tree = [&](const std::vector<std::vector<T>>& of) {
    auto result = this->sum(ReduceOp::kSum, of, 0, 1000, Stores::kCached, SumOrder::kBinaryTree);
    result.resize(1000 + kTreeMargin);
    return result;
  };
  for (const int group : {1, 2, 4}) {
    std::vector<std::vector<T>> partial;
    for (int first = 0; first < 8; first += group) {
      partial.push_back(in_tree({sources.begin() + first, sources.begin() + first + group}));
    }
    EXPECT_EQ(in_tree(partial), in_tree(sources)) << group;
  }
}

}  // namespace
}  // namespace tessera::internal::kernels
