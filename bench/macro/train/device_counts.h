#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>

namespace bench {

/// The work of a GPU during a call, as seen by CUPTI (through LibTorch's profiler, which has it in
/// builds for CUDA). Kernels of a CUDA graph count one by one.
struct DeviceCounts {
  int64_t kernels = 0;
  int64_t copies = 0;  ///< in any direction, by the copy engines or by cudaMemcpyAsync
  int64_t fills = 0;   ///< cudaMemsetAsync

  /// Runs `work` and waits for `device`. The first call takes seconds. All counts are zero if CUPTI
  /// sees nothing: over fakes, or if the driver refuses it.
  static DeviceCounts during(at::Device device, const std::function<void()>& work);
};

}  // namespace bench
