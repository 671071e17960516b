#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Returns true if the tensors have the same bits. Both must be on the CPU and have the same sizes
/// and dtype. Allocates only if their memory has gaps or another order.
bool have_same_bits(const at::Tensor& left, const at::Tensor& right);

/// The memory that, at construction, this process may read but not write, such as the program's
/// constants and files that are mapped read-only. The constructor is local and reads
/// /proc/self/maps, which takes about a millisecond; without that file no memory counts as
/// read-only.
class ReadOnlyMemory {
 public:
  ReadOnlyMemory();

  /// Returns true if an element of `tensor` lies in read-only memory.
  bool holds(const at::Tensor& tensor) const;

  /// Returns why `values`, with the sizes and dtype of `tensor`, cannot be written to `tensor`; ""
  /// if they can, or if `tensor` has these bits already.
  std::string problem(const at::Tensor& tensor, const at::Tensor& values) const;

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };
  std::vector<Range> ranges_;  // ascending
};

}  // namespace tessera::internal
