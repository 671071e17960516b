#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace memory_compare {

/// Bytes that LibTorch's allocator has given out on a GPU: all tensors, rounded up to its blocks,
/// without CUDA's own memory.
struct DeviceMemory {
  int64_t now_bytes = 0;
  int64_t peak_bytes = 0;  ///< since restart_peak()

  /// Local, non-blocking. `device` is a GPU with an index on which LibTorch has been used.
  static DeviceMemory of(at::Device device);
  static void restart_peak(at::Device device);
};

}  // namespace memory_compare
