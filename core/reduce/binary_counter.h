#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// A sum of terms that come one after the other, added as a complete binary tree adds them:
/// (1 + 2) + (3 + 4). Partial sums are kept like the bits of a binary counter of the terms, each of
/// as many terms as its bit says; the one of most lies with the caller. After a power of two of
/// terms that is the sum of all. Elementwise, in the terms' own dtype, local.
class BinaryCounter {
 public:
  /// Memory for one partial sum.
  using Allocate = std::function<at::Tensor()>;

  /// Adds `term` to what has been added since clear(). `most`: the caller's partial sum; since
  /// clear() the caller has put the first term there. Partial sums beside it are made by `allocate`
  /// when they are first needed, and are kept: log2(k) - 1 of them for k >= 2 terms.
  void add(const at::Tensor& most, const at::Tensor& term, const Allocate& allocate);

  /// Begins another sum.
  void clear() { terms_ = 1; }

  /// Those in use, beside the caller's.
  size_t used() const;
  /// All that have been made; the first used() are in use.
  const std::vector<at::Tensor>& partial_sums() const { return partial_; }

 private:
  std::vector<at::Tensor> partial_;  // in falling order of their terms
  uint64_t terms_ = 1;
};

/// How many partial sums of `terms` terms exist at once, at most, the one of most included.
int64_t partial_sums_of(int64_t terms);

}  // namespace tessera::internal
