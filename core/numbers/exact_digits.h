#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tessera/core/numbers/device_code.h"

namespace tessera::internal {

/// Number of words of an ExactSum in plain memory. Most words are digits of 32 bits in units of
/// 2^-1074, least significant first. Until exact_normalize() is called, each of these words keeps
/// its own carries and sign. The last digit is signed and holds everything above the other digits.
/// The last three words count NaN, +infinity and -infinity.
inline constexpr size_t kExactWords = 70;
inline constexpr size_t kExactDigits = kExactWords - 3;
inline constexpr size_t kExactNan = kExactDigits;
inline constexpr size_t kExactPlusInfinity = kExactDigits + 1;
inline constexpr size_t kExactMinusInfinity = kExactDigits + 2;
inline constexpr int kExactDigitBits = 32;
inline constexpr int kExactMantissaBits = 53;

// The largest double has its top bit at 1023 + 1074, which lies below the last digit.
static_assert((kExactDigits - 1) * kExactDigitBits > 1023 + 1074);

/// The amounts, each below 2^32 in magnitude, that a finite term adds to the words `word`, `word` +
/// 1 and `word` + 2.
struct ExactTerm {
  uint32_t word;
  int64_t low;
  int64_t middle;
  int64_t high;
};

TESSERA_DEVICE_CODE inline bool exact_is_finite(double term) {
  return (std::bit_cast<uint64_t>(term) >> (kExactMantissaBits - 1) & 0x7ff) != 0x7ff;
}

/// Returns the index of the word that counts `term`, which must not be finite.
TESSERA_DEVICE_CODE inline size_t exact_count_word(double term) {
  const auto encoding = std::bit_cast<uint64_t>(term);
  const uint64_t mantissa = encoding & ((uint64_t{1} << (kExactMantissaBits - 1)) - 1);
  if (mantissa != 0) return kExactNan;
  return encoding >> 63 != 0 ? kExactMinusInfinity : kExactPlusInfinity;
}

/// Returns the digits of `term`, which must be finite.
TESSERA_DEVICE_CODE inline ExactTerm exact_term(double term) {
  constexpr uint64_t kDigitMask = 0xffffffffU;
  const auto encoding = std::bit_cast<uint64_t>(term);
  const auto exponent = static_cast<uint32_t>(encoding >> (kExactMantissaBits - 1) & 0x7ff);
  uint64_t mantissa = encoding & ((uint64_t{1} << (kExactMantissaBits - 1)) - 1);
  if (exponent != 0) mantissa |= uint64_t{1} << (kExactMantissaBits - 1);
  // The mantissa is in units of 2^(shift - 1074).
  const uint32_t shift = exponent == 0 ? 0 : exponent - 1;
  const uint32_t within = shift % kExactDigitBits;
  // The three digits of mantissa << within, which may have 84 bits.
  const auto low = static_cast<int64_t>((mantissa << within) & kDigitMask);
  const auto middle = static_cast<int64_t>((mantissa >> (32 - within)) & kDigitMask);
  const auto high = static_cast<int64_t>((mantissa >> 32) >> (32 - within));
  const int64_t sign = encoding >> 63 != 0 ? -1 : 1;
  return {shift / kExactDigitBits, sign * low, sign * middle, sign * high};
}

/// Carries what exceeds 32 bits from each digit into the next. Equal sums have equal normal forms.
TESSERA_DEVICE_CODE inline void exact_normalize(int64_t* words) {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kExactDigits; ++i) {
    const int64_t digit = words[i] + carry;
    words[i] = static_cast<int64_t>(static_cast<uint64_t>(digit) & 0xffffffffU);
    carry = digit >> kExactDigitBits;  // rounds down, so that negative digits borrow
  }
  words[kExactDigits - 1] += carry;
}

/// Returns bits [position, position + count) of the number with these digits, which must be
/// normalized and not negative; count <= 64.
TESSERA_DEVICE_CODE inline uint64_t exact_bits(const int64_t* digits, int position, int count) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) {
    const int bit = position + i;
    const auto digit = static_cast<uint64_t>(digits[bit / kExactDigitBits]);
    bits |= (digit >> (bit % kExactDigitBits) & 1) << i;
  }
  return bits;
}

/// Returns the sum rounded once to the nearest double. Destroys `words`.
TESSERA_DEVICE_CODE inline double exact_value(int64_t* words) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool has_plus = words[kExactPlusInfinity] != 0;
  const bool has_minus = words[kExactMinusInfinity] != 0;
  if (words[kExactNan] != 0 || (has_plus && has_minus)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (has_plus || has_minus) return has_plus ? kInfinity : -kInfinity;

  exact_normalize(words);
  const bool is_negative = words[kExactDigits - 1] < 0;
  if (is_negative) {
    for (size_t i = 0; i < kExactDigits; ++i) words[i] = -words[i];
    exact_normalize(words);
  }
  const double sign = is_negative ? -1.0 : 1.0;
  if (words[kExactDigits - 1] != 0) return sign * kInfinity;  // at least 2^1038

  size_t top_digit = kExactDigits - 1;
  while (top_digit > 0 && words[top_digit] == 0) --top_digit;
  int top_bit = static_cast<int>(top_digit) * kExactDigitBits - 1;
  for (auto digit = static_cast<uint64_t>(words[top_digit]); digit != 0; digit >>= 1) ++top_bit;
  // An integer below 2^53 in units of 2^-1074 is its own encoding.
  if (top_bit < kExactMantissaBits) {
    return sign * std::bit_cast<double>(exact_bits(words, 0, kExactMantissaBits));
  }
  const int low_bit = top_bit - kExactMantissaBits + 1;
  // The mantissa's leading bit adds one to the exponent field, and rounding up carries into that
  // field, up to infinity.
  uint64_t encoding = (static_cast<uint64_t>(low_bit) << (kExactMantissaBits - 1)) +
                      exact_bits(words, low_bit, kExactMantissaBits);
  const bool is_half_or_more = exact_bits(words, low_bit - 1, 1) != 0;
  bool is_odd_or_more_than_half = (encoding & 1) != 0;
  for (int bit = low_bit - 2; bit >= 0 && !is_odd_or_more_than_half; --bit) {
    is_odd_or_more_than_half = exact_bits(words, bit, 1) != 0;
  }
  if (is_half_or_more && is_odd_or_more_than_half) ++encoding;
  const auto infinity = std::bit_cast<uint64_t>(kInfinity);
  return sign * std::bit_cast<double>(encoding < infinity ? encoding : infinity);
}

}  // namespace tessera::internal
