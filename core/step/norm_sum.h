#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/flat_layout.h"

namespace tessera::internal {

/// A p-norm under construction: the sum of |g|^p without rounding, or for p = infinity the largest
/// |g|. The result does not depend on the order or grouping of the additions. NaN and infinities
/// are kept. Value type; ranks exchange its words.
class NormSum {
 public:
  static constexpr size_t kWords = ExactSum::kWords;

  /// Makes the norm of no elements. p > 0; infinity is allowed.
  explicit NormSum(double p = 2.0) : p_(p) {}
  /// Makes the 2-norm of elements whose squares have the sum `squares`.
  explicit NormSum(const ExactSum& squares) : sum_(squares) {}

  double p() const { return p_; }

  /// Adds `segment` of the flat gradient `buffer`, with finite elements clamped to [-limit, limit].
  /// Uses the blocks of add_squares(), so with p = 2 and limit = infinity the sum has the same bits
  /// as that of add_squares(). Local.
  void add(const at::Tensor& buffer, const Segment& segment, double limit);
  /// Adds another NormSum with the same p.
  void merge(const NormSum& other);

  /// store() writes this NormSum as words, which ranks exchange; load() makes it from them, for the
  /// same p.
  void store(std::span<int64_t, kWords> words) const;
  static NormSum load(double p, std::span<const int64_t, kWords> words);

  /// Returns the norm; infinity if the sum of powers overflows.
  double norm() const;

 private:
  double p_ = 2.0;
  ExactSum sum_;          // for p below infinity
  double largest_ = 0.0;  // for p = infinity
};

}  // namespace tessera::internal
