#pragma once

#include <bit>
#include <cstdint>

#include "tessera/core/numbers/device_code.h"

// Types for 16-bit elements and conversions to and from float, without the headers of LibTorch or
// CUDA. On CPU and GPU the bits are those of c10's conversions.
namespace tessera::internal::cuda {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

TESSERA_DEVICE_CODE inline float widen(float value) { return value; }
TESSERA_DEVICE_CODE inline float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
/// Computes a result for normal values, by moving the exponent, and one for denormal values, by a
/// subtraction, and selects the one that applies.
TESSERA_DEVICE_CODE inline float widen(Half value) {
  const uint32_t word = static_cast<uint32_t>(value.bits) << 16;
  const uint32_t sign = word & 0x80000000U;
  const uint32_t twice = word + word;
  const float usual = std::bit_cast<float>((twice >> 4) + (uint32_t{0xE0} << 23)) * 0x1.0p-112F;
  const float denormal = std::bit_cast<float>((twice >> 17) | (uint32_t{126} << 23)) - 0.5F;
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(twice < (uint32_t{1} << 27) ? denormal : usual));
}

/// Returns `value` rounded to the nearest T, ties to even. In the 16-bit types, values beyond the
/// range become infinity, and NaNs lose their payload.
template <typename T>
TESSERA_DEVICE_CODE inline T narrow(float value);

template <>
TESSERA_DEVICE_CODE inline float narrow(float value) {
  return value;
}

template <>
TESSERA_DEVICE_CODE inline BFloat16 narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<uint16_t>(is_nan ? 0x7FC0U : rounded)};
}

/// The addition of a power of two does the rounding, as in c10.
template <>
TESSERA_DEVICE_CODE inline Half narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t twice = bits + bits;
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFU);
  uint32_t bias = twice & 0xFF000000U;
  if (bias < 0x71000000U) bias = 0x71000000U;
  const float base = (magnitude * 0x1.0p+112F) * 0x1.0p-110F;
  const auto sum = std::bit_cast<uint32_t>(std::bit_cast<float>((bias >> 1) + 0x07800000U) + base);
  const uint32_t rounded = ((sum >> 13) & 0x00007C00U) + (sum & 0x00000FFFU);
  const uint32_t unsigned_bits = twice > 0xFF000000U ? 0x7E00U : rounded;
  return {static_cast<uint16_t>(((bits & 0x80000000U) >> 16) | unsigned_bits)};
}

/// Returns true if `value` is NaN or infinite: all bits of the exponent are set.
TESSERA_DEVICE_CODE inline bool is_non_finite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7F800000U) == 0x7F800000U;
}
TESSERA_DEVICE_CODE inline bool is_non_finite(BFloat16 value) {
  return (value.bits & 0x7F80U) == 0x7F80U;
}
TESSERA_DEVICE_CODE inline bool is_non_finite(Half value) {
  return (value.bits & 0x7C00U) == 0x7C00U;
}

}  // namespace tessera::internal::cuda
