#pragma once

#include <string>

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// How far results of a real GPU may be off the CPU's: |a - b| <= this * max(1, largest |b| of the
/// tensor). Its kernels add in another order, some 1e-6 of a gradient; AdamW divides by the
/// gradient's own size, so what nearly cancels may move a parameter by a part of its step (0.03 at
/// most, four times).
inline constexpr double kGpuTolerance = 2e-3;

/// What differs between a run on GPUs and one on the CPU, one line each; empty if nothing. Over the
/// fakes every bit counts (bit_differences()); on real GPUs parameters, losses and gradient norms
/// are compared with kGpuTolerance, and one in the last place more where parameters have 16 bits.
std::string gpu_differences(const Outcome& gpu, const Outcome& cpu);

}  // namespace tessera::internal::testing
