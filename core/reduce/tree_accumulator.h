#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// A sum of terms that arrive one after the other, added as in a complete binary tree: (1 + 2) + (3
/// + 4). The partial sums correspond to the bits that are set in the number of terms so far: bit i
/// stands for a sum of 2^i terms. The caller holds the partial sum with the most terms; when the
/// number of terms is a power of two, that is the sum of all terms. Elementwise, in the terms' own
/// dtype, local.
class TreeAccumulator {
 public:
  /// Memory for one partial sum.
  using Allocate = std::function<at::Tensor()>;

  /// Adds `term` to the sum since clear(). `most` is the caller's partial sum, into which the
  /// caller has put the first term. `allocate` makes the other partial sums when they are first
  /// needed; after that they are kept. k >= 2 terms need log2(k) - 1 of them, rounded up.
  void add(const at::Tensor& most, const at::Tensor& term, const Allocate& allocate);

  /// Begins another sum.
  void clear() { terms_ = 1; }

  /// Returns the number of partial sums in use, without the caller's.
  size_t used() const;
  /// Returns all partial sums made so far; the first used() of them are in use.
  const std::vector<at::Tensor>& partial_sums() const { return partial_; }

 private:
  std::vector<at::Tensor> partial_;  // the partial sums with more terms come first
  uint64_t terms_ = 1;
};

/// Returns the largest number of partial sums that exist at the same time while `terms` terms are
/// added, including the caller's.
int64_t partial_sums_of(int64_t terms);

}  // namespace tessera::internal
