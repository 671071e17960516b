#pragma once

#include <cstdint>

#include "tessera/optim/eight_bit/kernels.h"

namespace tessera::internal {

/// Returns true if this processor and compiler have the functions below (AVX-512 F, BW and DQ).
bool has_wide_kernels();

/// The updates of kernels.h, with the same bits. They convert codes by permutations of registers,
/// which is so fast that the speed of memory limits the update. Call only if has_wide_kernels().
void adamw8bit_update_wide(float* values, const float* gradient, const CodedMoment& moment1,
                           const CodedMoment& moment2, int64_t numel,
                           const AdamwCoefficients& coefficients);
void lion8bit_update_wide(float* values, const float* gradient, const CodedMoment& momentum,
                          int64_t numel, const LionCoefficients& coefficients);

/// The updates of kernels.h by loops, on any processor.
void adamw8bit_update_by_loops(float* values, const float* gradient, const CodedMoment& moment1,
                               const CodedMoment& moment2, int64_t numel,
                               const AdamwCoefficients& coefficients);
void lion8bit_update_by_loops(float* values, const float* gradient, const CodedMoment& momentum,
                              int64_t numel, const LionCoefficients& coefficients);

}  // namespace tessera::internal
