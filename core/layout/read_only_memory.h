#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Whether both, of the same sizes and dtype and on the CPU, have the same bits. Allocates only
/// where their memory has gaps or another order.
bool have_same_bits(const at::Tensor& left, const at::Tensor& right);

/// The memory of this process that it may read and not write, such as the constants of a program
/// and files that are mapped read-only, as it is when this is made. Making one is local and reads
/// /proc/self/maps, which takes about a millisecond; where there is none, no memory counts as such.
class ReadOnlyMemory {
 public:
  ReadOnlyMemory();

  /// Whether an element of `tensor` lies there.
  bool holds(const at::Tensor& tensor) const;

  /// Why `tensor` cannot be given `values`, of its sizes and dtype; "" if it can, or has the bits
  /// of `values` already, so that nobody has to write.
  std::string problem(const at::Tensor& tensor, const at::Tensor& values) const;

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };
  std::vector<Range> ranges_;  // ascending
};

}  // namespace tessera::internal
