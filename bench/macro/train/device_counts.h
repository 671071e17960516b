#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>

namespace bench {

/// What a GPU did during a call, as CUPTI saw it (through LibTorch's profiler, which has it in the
/// builds for CUDA). Kernels of a CUDA graph count one by one.
struct DeviceCounts {
  int64_t kernels = 0;
  int64_t copies = 0;  ///< in any direction, by the copy engines or as cudaMemcpyAsync
  int64_t fills = 0;   ///< cudaMemsetAsync

  /// Runs `work` and waits for `device`. Costs seconds the first time. All zero where CUPTI sees
  /// nothing: over fakes, or where the driver refuses it.
  static DeviceCounts during(at::Device device, const std::function<void()>& work);
};

}  // namespace bench
