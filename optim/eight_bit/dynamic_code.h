#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// How a number between -1 and 1 becomes a byte, and how a byte becomes a number.
namespace tessera::internal {

/// Note [Dynamic codes]
/// The dynamic trees of Dettmers et al. (arXiv 2110.02861, section 2): magnitudes in seven decades
/// from 1e-7 to 1, each with twice as many values as the decade below. Decade i has n = kFirst *
/// 2^i values, where kFirst is 1 in the signed tree and 2 in the unsigned one. Magnitude number u =
/// n ... 2n - 1 is 10^(i-6) * (0.1 + 0.9 * (u - n + 0.5) / n), the middle of one of n equal cells.
/// Magnitude number 128 * kFirst is 1, and magnitude number kFirst - 1 is 0.
///
/// Within a decade the value is a linear function of u, and the lines get steeper from decade to
/// decade. So the value is the largest of the seven lines at u. In the inverse direction, u is the
/// smallest of seven lines at the value. No search, no table, no branch: loops over elements become
/// vector instructions.
///
/// A number gets the nearest value. The cell of a value ends half way to the next value, where the
/// inverse line is a whole number, with two exceptions: a decade's last cell ends where the inverse
/// line is 0.2 above a whole number (a power of two), and the last cell before that of the value 1
/// ends where the inverse line is 0.25 below a whole number. The coefficients of the lines are
/// rounded, so if two values are equally near to a number, to within 2e-6 of the number, either may
/// be taken, but always the same value for the same bits. In the unsigned tree a positive number
/// never becomes 0, because updates are divided by the root of the second moment (Li et al., arXiv
/// 2309.01507, section 4.1, on zero in second moments).
///
/// The byte of a number is u - 1 in the unsigned tree. In the signed tree it is u, or 256 - u if
/// the number is negative. The signed tree has no -1. Byte 0 is zero in both trees.
namespace dynamic_code {

constexpr double unit_of_decade(int decade) {
  double unit = 1;
  for (int i = decade; i < 6; ++i) unit /= 10;
  return unit;
}

struct Line {
  float slope;
  float offset;
};

/// Returns the line of decade `decade`: value = slope * u + offset.
template <int kFirst>
constexpr Line line_over_numbers(int decade) {
  const double unit = unit_of_decade(decade);
  const double count = kFirst << decade;
  return {static_cast<float>(0.9 * unit / count), static_cast<float>(unit * (0.45 / count - 0.8))};
}

/// Returns the inverse line of decade `decade`: u = slope * value + offset. The signed tree's first
/// decade has only one value. Its line begins at u = 1.2, where the cell of 0 ends, half way to
/// that value.
template <int kFirst>
constexpr Line line_over_values(int decade) {
  const double count = kFirst << decade;
  if (count == 1) {
    return {static_cast<float>(0.8 / 0.725e-6), static_cast<float>(2 - 0.8 / 0.725)};
  }
  return {static_cast<float>(count / (0.9 * unit_of_decade(decade))),
          static_cast<float>(count * 8 / 9)};
}

template <int kFirst, int decade>
[[gnu::always_inline]] inline float largest_line(float u, float largest) {
  constexpr Line kLine = line_over_numbers<kFirst>(decade);
  const float line = std::fma(u, kLine.slope, kLine.offset);
  largest = line > largest ? line : largest;
  if constexpr (decade < 6) {
    return largest_line<kFirst, decade + 1>(u, largest);
  } else {
    return largest;
  }
}

template <int kFirst, int decade>
[[gnu::always_inline]] inline float smallest_line(float value, float smallest) {
  constexpr Line kLine = line_over_values<kFirst>(decade);
  const float line = std::fma(value, kLine.slope, kLine.offset);
  smallest = line < smallest ? line : smallest;
  if constexpr (decade < 6) {
    return smallest_line<kFirst, decade + 1>(value, smallest);
  } else {
    return smallest;
  }
}

/// Returns the u-th magnitude (Note [Dynamic codes]), a value from 0 to 1. `u` is kFirst - 1 (zero)
/// to 128 * kFirst (one).
template <int kFirst>
[[gnu::always_inline]] inline float magnitude(int32_t u) {
  const float value = largest_line<kFirst, 0>(static_cast<float>(u), 0.0f);
  return value < 1.0f ? value : 1.0f;
}

/// Returns the number of the cell in which `u` lies; `u` is a point on the inverse lines.
template <int kFirst>
[[gnu::always_inline]] inline int32_t cell_of(float u) {
  // Largest power of 2 up to u.
  const float power = std::bit_cast<float>(std::bit_cast<int32_t>(u) & ~0x7fffff);
  // Bools are converted to integers because selects would become branches. `early` is added after
  // the conversion to an integer, because as floats 1 plus the number just below 256 would round to
  // 257.
  const auto late = static_cast<int32_t>(u - power < 0.2f);
  const auto early = static_cast<int32_t>(u >= 128.0f * kFirst - 0.25f);
  return static_cast<int32_t>(u - static_cast<float>(late)) + early;
}

/// Returns the number of the magnitude nearest to `value`, which is at least 0.
template <int kFirst>
[[gnu::always_inline]] inline int32_t nearest(float value) {
  return cell_of<kFirst>(smallest_line<kFirst, 0>(value, 128.0f * kFirst));
}

}  // namespace dynamic_code

/// A block's scale and its inverse. The scale is the block's largest magnitude, at most 2^126, or 0
/// if that magnitude is below 2^-126. So every scale but 0 has an inverse. Magnitudes above 2^126
/// are stored as 2^126. A block with a NaN has the scale NaN.
struct BlockScale {
  float scale;
  float inverse;
};

inline constexpr int32_t kMagnitudeBits = 0x7fffffff;
inline constexpr int32_t kLargestScaleBits = (126 + 127) << 23;

/// Returns the scale of a block whose largest magnitude has the bit pattern `bits`. Bit patterns of
/// magnitudes, compared as integers, have the same order as the magnitudes, and NaN is above all
/// others.
inline BlockScale block_scale(int32_t bits) {
  constexpr int32_t kInfinityBits = 0x7f800000;
  constexpr int32_t kSmallestScaleBits = 1 << 23;
  if (bits < kSmallestScaleBits) return {0.0f, 0.0f};
  const float scale = std::bit_cast<float>(bits < kLargestScaleBits ? bits : kLargestScaleBits);
  return {bits > kInfinityBits ? std::bit_cast<float>(bits) : scale, 1.0f / scale};
}

/// The code of first moments, which have both signs.
struct SignedTree {
  static constexpr int kFirst = 1;
  /// Returns the value of `byte`, 0 to 255.
  [[gnu::always_inline]] static float value(int32_t byte) {
    const int32_t back = 256 - byte;
    const float magnitude = dynamic_code::magnitude<1>(byte < back ? byte : back);
    const int32_t sign = (128 - byte) & ~kMagnitudeBits;  // set for bytes above 128
    return std::bit_cast<float>(std::bit_cast<int32_t>(magnitude) | sign);
  }
  /// Returns the byte of `value` * `inverse`.
  [[gnu::always_inline]] static int32_t byte(float value, float inverse) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    const int32_t absolute = bits & kMagnitudeBits;
    const int32_t kept = absolute < kLargestScaleBits ? absolute : kLargestScaleBits;
    const int32_t u = dynamic_code::nearest<1>(std::bit_cast<float>(kept) * inverse);
    const int32_t sign = bits >> 31;  // 0 or -1
    const int32_t most = 128 + sign;
    return (((u < most ? u : most) ^ sign) - sign) & 255;
  }
};

/// The code of second moments, which are at least 0.
struct UnsignedTree {
  static constexpr int kFirst = 2;
  [[gnu::always_inline]] static float value(int32_t byte) {
    return dynamic_code::magnitude<2>(byte + 1);
  }
  /// Returns the byte of `value` * `inverse`; `value` must be at least 0.
  [[gnu::always_inline]] static int32_t byte(float value, float inverse) {
    const int32_t absolute = std::bit_cast<int32_t>(value) & kMagnitudeBits;
    const int32_t kept = absolute < kLargestScaleBits ? absolute : kLargestScaleBits;
    const int32_t u = dynamic_code::nearest<2>(std::bit_cast<float>(kept) * inverse);
    const int32_t least = absolute > 0 ? 1 : 0;
    return u - 1 < least ? least : u - 1;
  }
};

}  // namespace tessera::internal
