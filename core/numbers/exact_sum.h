#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::internal {

/// A sum of doubles without rounding, so that the result does not depend on the order or grouping
/// of the terms: a wide fixed-point number (Kulisch accumulator) for the whole range of finite
/// doubles. Value type; merging is integer addition, so ranks can exchange words.
class ExactSum {
 public:
  /// Number of 64-bit words of the exchanged form.
  static constexpr size_t kWords = 70;

  /// Adds one term. After a NaN, or after infinities of both signs, the sum is NaN; after
  /// infinities of one sign it is that infinity.
  void add(double term);

  /// Adds another accumulator. Exactly commutative and associative.
  void merge(const ExactSum& other);

  /// Stores the exchanged form: kWords words, equal for equal sums. The words of up to 2^30 ranks
  /// may also be added word by word (an int64 SUM collective) and then loaded.
  void store(std::span<int64_t, kWords> words) const;
  static ExactSum load(std::span<const int64_t, kWords> words);

  /// Returns the sum rounded once to the nearest double.
  double value() const;

 private:
  /// Carries what exceeds 32 bits from each digit into the next. Equal sums then have equal words.
  void normalize();

  // The layout is that of exact_digits.h.
  std::array<int64_t, kWords> words_{};
  // Every digit is below (unnormalized_ + 1) * 2^32 in magnitude.
  int64_t unnormalized_ = 0;
};

}  // namespace tessera::internal
