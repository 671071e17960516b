#include "tessera/core/step/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

constexpr size_t kDigits = ExactSum::kWords - 3;  // the last digit is signed and holds what is left
constexpr size_t kNan = kDigits;
constexpr size_t kPlusInfinity = kDigits + 1;
constexpr size_t kMinusInfinity = kDigits + 2;

constexpr int kDigitBits = 32;
constexpr uint64_t kDigitMask = 0xffffffffu;
constexpr int kMantissaBits = 53;
constexpr int64_t kMaxUnnormalized = int64_t{1} << 30;

// The largest double has its top bit at 1023 + 1074, inside the digits below the last one.
static_assert((kDigits - 1) * kDigitBits > 1023 + 1074);

/// Bits [position, position + count) of the number whose digits are given, count <= 64.
uint64_t bits_at(const std::array<int64_t, ExactSum::kWords>& digits, int position, int count) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) {
    const int bit = position + i;
    const auto digit = static_cast<uint64_t>(digits[static_cast<size_t>(bit / kDigitBits)]);
    bits |= (digit >> (bit % kDigitBits) & 1) << i;
  }
  return bits;
}

}  // namespace

void ExactSum::add(double term) {
  const auto encoding = std::bit_cast<uint64_t>(term);
  const auto exponent = static_cast<int>(encoding >> (kMantissaBits - 1) & 0x7ff);
  const bool is_negative = encoding >> 63 != 0;
  uint64_t mantissa = encoding & ((uint64_t{1} << (kMantissaBits - 1)) - 1);
  if (exponent == 0x7ff) {
    ++words_[mantissa != 0 ? kNan : (is_negative ? kMinusInfinity : kPlusInfinity)];
    return;
  }
  if (exponent != 0) mantissa |= uint64_t{1} << (kMantissaBits - 1);
  const int shift = std::max(exponent, 1) - 1;  // in units of 2^-1074
  const auto digit = static_cast<size_t>(shift / kDigitBits);
  const auto shifted = static_cast<unsigned __int128>(mantissa) << (shift % kDigitBits);
  const auto low = static_cast<int64_t>(static_cast<uint64_t>(shifted) & kDigitMask);
  const auto middle = static_cast<int64_t>(static_cast<uint64_t>(shifted >> 32) & kDigitMask);
  const auto high = static_cast<int64_t>(static_cast<uint64_t>(shifted >> 64));
  const int64_t sign = is_negative ? -1 : 1;
  words_[digit] += sign * low;
  words_[digit + 1] += sign * middle;
  words_[digit + 2] += sign * high;
  if (++unnormalized_ >= kMaxUnnormalized) normalize();
}

void ExactSum::merge(const ExactSum& other) {
  for (size_t i = 0; i < kWords; ++i) words_[i] += other.words_[i];
  unnormalized_ += other.unnormalized_ + 1;
  if (unnormalized_ >= kMaxUnnormalized) normalize();
}

void ExactSum::normalize() {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    const int64_t digit = words_[i] + carry;
    words_[i] = static_cast<int64_t>(static_cast<uint64_t>(digit) & kDigitMask);
    carry = digit >> kDigitBits;  // rounds down, so that negative digits borrow
  }
  words_[kDigits - 1] += carry;
  unnormalized_ = 0;
}

void ExactSum::store(std::span<int64_t, kWords> words) const {
  ExactSum canonical = *this;
  canonical.normalize();
  std::copy(canonical.words_.begin(), canonical.words_.end(), words.begin());
}

ExactSum ExactSum::load(std::span<const int64_t, kWords> words) {
  ExactSum sum;
  std::copy(words.begin(), words.end(), sum.words_.begin());
  sum.normalize();
  return sum;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  const double infinity = std::numeric_limits<double>::infinity();
  const bool has_plus = sum.words_[kPlusInfinity] != 0;
  const bool has_minus = sum.words_[kMinusInfinity] != 0;
  if (sum.words_[kNan] != 0 || (has_plus && has_minus)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (has_plus || has_minus) return has_plus ? infinity : -infinity;

  sum.normalize();
  const bool is_negative = sum.words_[kDigits - 1] < 0;
  if (is_negative) {
    for (size_t i = 0; i < kDigits; ++i) sum.words_[i] = -sum.words_[i];
    sum.normalize();
  }
  const double sign = is_negative ? -1.0 : 1.0;
  if (sum.words_[kDigits - 1] != 0) return sign * infinity;  // 2^1038 and more

  size_t top_digit = kDigits - 1;
  while (top_digit > 0 && sum.words_[top_digit] == 0) --top_digit;
  const int top_bit =
      static_cast<int>(top_digit) * kDigitBits +
      static_cast<int>(std::bit_width(static_cast<uint64_t>(sum.words_[top_digit]))) - 1;
  // An integer below 2^53 in units of 2^-1074 is its own encoding.
  if (top_bit < kMantissaBits) {
    return sign * std::bit_cast<double>(bits_at(sum.words_, 0, kMantissaBits));
  }
  const int low_bit = top_bit - kMantissaBits + 1;
  // The mantissa's leading bit counts as one in the exponent's field; rounding up carries there by
  // itself, as far as infinity.
  uint64_t encoding = (static_cast<uint64_t>(low_bit) << (kMantissaBits - 1)) +
                      bits_at(sum.words_, low_bit, kMantissaBits);
  const bool is_half_or_more = bits_at(sum.words_, low_bit - 1, 1) != 0;
  bool is_odd_or_more_than_half = (encoding & 1) != 0;
  for (int bit = low_bit - 2; bit >= 0 && !is_odd_or_more_than_half; --bit) {
    is_odd_or_more_than_half = bits_at(sum.words_, bit, 1) != 0;
  }
  if (is_half_or_more && is_odd_or_more_than_half) ++encoding;
  const uint64_t infinity_encoding = std::bit_cast<uint64_t>(infinity);
  return sign * std::bit_cast<double>(std::min(encoding, infinity_encoding));
}

}  // namespace tessera
