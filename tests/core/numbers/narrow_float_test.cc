#include "tessera/core/numbers/narrow_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera::internal {
namespace {

template <typename T>
class NarrowFloat : public ::testing::Test {};
using Types = ::testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(NarrowFloat, Types);

TYPED_TEST(NarrowFloat, WidensAllValuesLikeC10) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value(static_cast<uint16_t>(bits), TypeParam::from_bits());
    ASSERT_EQ(std::bit_cast<uint32_t>(widen(value)),
              std::bit_cast<uint32_t>(static_cast<float>(value)))
        << bits;
  }
}

// Every upper half, so every sign, exponent, infinity and NaN, with lower halves at, next to and
// between the ties of both types.
TYPED_TEST(NarrowFloat, RoundsLikeC10) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x1FFFU, 0x2000U, 0x3000U, 0x5000U, 0x7FFFU,
          0x8000U, 0x8001U, 0xB000U, 0xD001U, 0xEFFFU, 0xF000U, 0xFFFFU}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(narrow<TypeParam>(value).x, static_cast<TypeParam>(value).x)
          << std::hex << (upper << 16 | lower);
    }
  }
}

// The comparison above must notice truncation and rounding ties up.
TEST(NarrowFloatControl, RoundsTiesToEven) {
  EXPECT_EQ(narrow<c10::BFloat16>(std::bit_cast<float>(0x3F808000U)).x, 0x3F80);
  EXPECT_EQ(narrow<c10::BFloat16>(std::bit_cast<float>(0x3F818000U)).x, 0x3F82);
  EXPECT_EQ(narrow<c10::BFloat16>(std::bit_cast<float>(0x3F808001U)).x, 0x3F81);
  EXPECT_EQ(narrow<c10::BFloat16>(std::bit_cast<float>(0xFF800001U)).x, 0x7FC0);
  EXPECT_EQ(narrow<c10::Half>(1.0F + 0x1p-11F).x, 0x3C00);
  EXPECT_EQ(narrow<c10::Half>(1.0F + 0x3p-11F).x, 0x3C02);
  EXPECT_TRUE(std::isinf(widen(narrow<c10::Half>(65520.0F))));
}

}  // namespace
}  // namespace tessera::internal
