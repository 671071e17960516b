// Compares sums of fp32 and fp64, which have their own path, with one addition at a time: the same
// bits for every length, alignment, number of ranks and kind of store.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/core/comm/kernels/reduce_kernels.h"

namespace tessera::internal::kernels {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kMargin = 32;  // elements around the result
constexpr int64_t kLengths[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 129, 1000, 4097};
constexpr int kRanks[] = {1, 2, 3, 4, 5, 8};

template <typename T>
class SumKernels : public ::testing::Test {
 protected:
  using Sources = std::vector<std::vector<T>>;

  /// Numbers of very different magnitudes, so that every order of additions rounds differently.
  Sources make_sources(int ranks, int64_t numel) {
    Sources sources(ranks);
    std::uniform_real_distribution<T> mantissa(-1, 1);
    for (auto& source : sources) {
      for (int64_t i = 0; i < numel; ++i) {
        source.push_back(std::ldexp(mantissa(random_), static_cast<int>(random_() % 20)));
      }
    }
    return sources;
  }

  static std::vector<T> reference(ReduceOp op, const Sources& sources) {
    std::vector<T> result;
    for (size_t i = 0; i < sources[0].size(); ++i) {
      volatile T value = sources[0][i];  // prevents vectorisation
      for (size_t rank = 1; rank < sources.size(); ++rank) value = value + sources[rank][i];
      if (op == ReduceOp::kAvg) value = value / static_cast<T>(sources.size());
      result.push_back(T(value));
    }
    return result;
  }

  /// Returns the address `offset` elements after a cache line's begin, with margins on both sides.
  static T* place_in(std::vector<T>& memory, int64_t numel, int64_t offset) {
    memory.assign(numel + 3 * kMargin, T(-7));
    const auto address = reinterpret_cast<uintptr_t>(memory.data() + kMargin);
    const uintptr_t line = (address + kLineBytes - 1) / kLineBytes * kLineBytes;
    return reinterpret_cast<T*>(line) + offset;
  }

  static bool only_range_written(const std::vector<T>& memory, const T* begin, int64_t numel) {
    return std::all_of(memory.data(), begin, [](T value) { return value == T(-7); }) &&
           std::all_of(begin + numel, memory.data() + memory.size(),
                       [](T value) { return value == T(-7); });
  }

  static bool same_bits(const T* got, const std::vector<T>& expected) {
    return expected.empty() || std::memcmp(got, expected.data(), expected.size() * sizeof(T)) == 0;
  }

  static void sum(ReduceOp op, const std::vector<const T*>& from, const std::vector<T*>& to,
                  int64_t numel, Stores stores) {
    std::vector<const char*> sources;
    std::vector<char*> targets;
    for (const T* source : from) sources.push_back(reinterpret_cast<const char*>(source));
    for (T* target : to) targets.push_back(reinterpret_cast<char*>(target));
    reduce(c10::CppTypeToScalarType<T>::value, op, sources.data(), static_cast<int>(sources.size()),
           targets.data(), static_cast<int>(targets.size()), numel, stores);
  }

  std::mt19937 random_{20};
};

using WideTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SumKernels, WideTypes);

TYPED_TEST(SumKernels, AnywhereAndByAnyStoreTheBitsAreThoseOfTheReference) {
  using T = TypeParam;
  for (const int ranks : kRanks) {
    for (const int64_t numel : kLengths) {
      const auto sources = this->make_sources(ranks, numel);
      std::vector<const T*> from;
      for (const auto& source : sources) from.push_back(source.data());
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const std::vector<T> expected = this->reference(op, sources);
        for (const int64_t offset : {0, 1, 3, 7}) {
          for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
            std::vector<T> memory;
            T* const target = this->place_in(memory, numel, offset);
            this->sum(op, from, {target}, numel, stores);
            ASSERT_TRUE(this->same_bits(target, expected))
                << ranks << " ranks, " << numel << " elements, offset " << offset;
            ASSERT_TRUE(this->only_range_written(memory, target, numel))
                << ranks << " ranks, " << numel << " elements, offset " << offset;
          }
        }
      }
    }
  }
}

TYPED_TEST(SumKernels, SourcesMayBeTheTargets) {
  using T = TypeParam;
  for (const int ranks : kRanks) {
    for (const int64_t numel : kLengths) {
      auto sources = this->make_sources(ranks, numel);
      const std::vector<T> expected = this->reference(ReduceOp::kAvg, sources);
      std::vector<const T*> from;
      std::vector<T*> to;
      for (auto& source : sources) {
        from.push_back(source.data());
        to.push_back(source.data());
      }
      this->sum(ReduceOp::kAvg, from, to, numel, Stores::kCached);
      for (const T* target : to)
        ASSERT_TRUE(this->same_bits(target, expected)) << ranks << " ranks";
    }
  }
}

// The comparison must notice the order of the ranks, and the margins' check one element.
TYPED_TEST(SumKernels, NegativeControls) {
  using T = TypeParam;
  constexpr int64_t kNumel = 1000;
  const auto sources = this->make_sources(3, kNumel);
  const std::vector<T> expected = this->reference(ReduceOp::kSum, sources);
  std::vector<T> memory;
  T* const target = this->place_in(memory, kNumel, 0);
  this->sum(ReduceOp::kSum, {sources[2].data(), sources[1].data(), sources[0].data()}, {target},
            kNumel, Stores::kCached);
  EXPECT_FALSE(this->same_bits(target, expected)) << "another order rounds differently";
  EXPECT_FALSE(this->only_range_written(memory, target, kNumel - 1));
}

}  // namespace
}  // namespace tessera::internal::kernels
