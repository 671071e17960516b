#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Memory for temporary values: a buffer is reused as soon as no tensor of it is held, so a caller
/// that takes one tensor after the other needs one buffer, as large as the largest. Used by one
/// thread.
class ScratchBuffers {
 public:
  /// Of buffers at `device`. Bytes are counted by `meter`, which must outlive this, as
  /// `memory_class`.
  ScratchBuffers(at::Device device, MemoryMeter& meter, MemoryClass memory_class);
  ~ScratchBuffers();
  ScratchBuffers(const ScratchBuffers&) = delete;
  ScratchBuffers& operator=(const ScratchBuffers&) = delete;

  /// A tensor [numel], contents undefined: the smallest free buffer that is large
  /// enough, or else a new one in the place of a smaller free one. Local.
  at::Tensor acquire(int64_t numel, at::ScalarType dtype);

 private:
  const at::Device device_;
  MemoryMeter& meter_;
  const MemoryClass memory_class_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace tessera::internal
