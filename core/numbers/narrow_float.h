#pragma once

#include <bit>
#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tessera::internal {

/// Returns `value` as fp32, with the bits of static_cast<float>. These conversions use only
/// integers and selections, so that loops over them vectorise.
[[gnu::always_inline]] inline float widen(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}
[[gnu::always_inline]] inline float widen(c10::Half value) { return static_cast<float>(value); }

/// Returns `value` rounded to the nearest T, ties to even, with the bits of static_cast<T>. A NaN
/// becomes the NaN that c10 produces.
template <typename T>
T narrow(float value) = delete;

template <>
[[gnu::always_inline]] inline c10::BFloat16 narrow(float value) {
  constexpr uint32_t kInfinity = 0x7F800000U;
  constexpr uint32_t kNan = 0x7FC0U;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > kInfinity;
  return {static_cast<uint16_t>(is_nan ? kNan : rounded), c10::BFloat16::from_bits()};
}

template <>
[[gnu::always_inline]] inline c10::Half narrow(float value) {
  return static_cast<c10::Half>(value);
}

}  // namespace tessera::internal
