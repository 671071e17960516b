// Compares the loops of the 16-bit types, for every compiled vector width, with c10's conversions
// and one addition or comparison at a time. Other dtypes: collectives_test.cc.
#include "tessera/core/comm/kernels/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tessera::internal::kernels {
namespace {

template <typename T>
class ReduceKernels : public ::testing::Test {
 protected:
  static constexpr int64_t kNumel = 65536;

  /// Every value of the type.
  static std::vector<T> all_values() {
    std::vector<T> values;
    for (int64_t bits = 0; bits < kNumel; ++bits) {
      values.emplace_back(static_cast<uint16_t>(bits), T::from_bits());
    }
    return values;
  }

  static std::vector<T> reduced(ReduceOp op, const std::vector<std::vector<T>>& sources) {
    std::vector<const char*> from;
    for (const auto& source : sources) from.push_back(reinterpret_cast<const char*>(source.data()));
    std::vector<T> first(sources[0].size());
    std::vector<T> second(sources[0].size());
    char* const to[] = {reinterpret_cast<char*>(first.data()),
                        reinterpret_cast<char*>(second.data())};
    reduce(c10::CppTypeToScalarType<T>::value, op, from.data(), static_cast<int>(from.size()), to,
           2, static_cast<int64_t>(first.size()));
    EXPECT_EQ(bits_of(first), bits_of(second)) << "all targets get the same";
    return first;
  }

  static std::vector<uint16_t> bits_of(const std::vector<T>& values) {
    std::vector<uint16_t> bits;
    for (const T value : values) bits.push_back(value.x);
    return bits;
  }

  static float combined(ReduceOp op, float a, float b) {
    if (op == ReduceOp::kMin) return !(a != a) && (b != b || b < a) ? b : a;
    if (op == ReduceOp::kMax) return !(a != a) && (b != b || b > a) ? b : a;
    return a + b;
  }

  /// Computes element after element with c10's conversions.
  static std::vector<T> reference(ReduceOp op, const std::vector<std::vector<T>>& sources) {
    std::vector<T> result;
    for (size_t i = 0; i < sources[0].size(); ++i) {
      volatile float value = static_cast<float>(sources[0][i]);  // prevents vectorisation
      for (size_t rank = 1; rank < sources.size(); ++rank) {
        value = combined(op, value, static_cast<float>(sources[rank][i]));
      }
      if (op == ReduceOp::kAvg) value = value / static_cast<float>(sources.size());
      result.push_back(static_cast<T>(value));
    }
    return result;
  }
};

using NarrowTypes = ::testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(ReduceKernels, NarrowTypes);

constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};

TYPED_TEST(ReduceKernels, OneSourceComesBackAsC10RoundsIt) {
  const auto values = this->all_values();
  for (const ReduceOp op : kReductions) {
    EXPECT_EQ(this->bits_of(this->reduced(op, {values})),
              this->bits_of(this->reference(op, {values})));
  }
}

// Every value with others: ties, sums that overflow, subnormals, infinity. Two NaNs are never
// combined, because their sum may be either.
TYPED_TEST(ReduceKernels, AllValuesWithOthersGiveTheBitsOfTheReference) {
  const auto values = this->all_values();
  const float largest = static_cast<float>(std::numeric_limits<TypeParam>::max());
  for (const float other : {0.0F, -0.0F, 1.0F, -1.00390625F, 1e-6F, largest, -largest,
                            std::numeric_limits<float>::infinity()}) {
    const std::vector<TypeParam> others(values.size(), static_cast<TypeParam>(other));
    for (const ReduceOp op : kReductions) {
      EXPECT_EQ(this->bits_of(this->reduced(op, {values, others})),
                this->bits_of(this->reference(op, {values, others})))
          << to_string(op) << " with " << other;
      EXPECT_EQ(this->bits_of(this->reduced(op, {others, values, others})),
                this->bits_of(this->reference(op, {others, values, others})))
          << to_string(op) << " between " << other;
    }
  }
}

// The comparison must notice one bit and the sign of a zero.
TYPED_TEST(ReduceKernels, NegativeControlsOfTheReference) {
  const auto values = this->all_values();
  const std::vector<TypeParam> zeros(values.size(), TypeParam(0.0F));
  const std::vector<TypeParam> negative(values.size(), TypeParam(-0.0F));
  const auto sum = this->bits_of(this->reference(ReduceOp::kSum, {values, zeros}));
  EXPECT_NE(sum, this->bits_of(this->reference(ReduceOp::kSum, {values, negative})));
  const std::vector<TypeParam> smallest(values.size(), TypeParam(1, TypeParam::from_bits()));
  EXPECT_NE(sum, this->bits_of(this->reference(ReduceOp::kSum, {values, smallest})));
}

}  // namespace
}  // namespace tessera::internal::kernels
