#pragma once

#include <string>

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// The largest allowed difference between a real GPU and the CPU: |a - b| <= this * max(1, largest
/// |b| of the tensor). Kernels add in another order, which changes a gradient by about 1e-6. AdamW
/// divides by the gradient's own size, so if a gradient nearly cancels, its parameter may move by a
/// fraction of a step (at most 0.03, four times).
inline constexpr double kGpuTolerance = 2e-3;

/// Returns the differences between a run on GPUs and one on the CPU, one per line; empty if there
/// are none. With the fakes every bit counts (bit_differences()). On real GPUs parameters, losses
/// and gradient norms are compared with kGpuTolerance; 16-bit parameters may differ by one more
/// unit in the last place.
std::string gpu_differences(const Outcome& gpu, const Outcome& cpu);

}  // namespace tessera::internal::testing
