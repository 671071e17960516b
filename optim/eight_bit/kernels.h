#pragma once

#include <cstdint>

#include "tessera/optim/formulas/adamw_element.h"
#include "tessera/optim/formulas/lion_element.h"

namespace tessera::internal {

/// How many elements share one scale. Blocks are counted from a parameter's start in memory order.
inline constexpr int64_t kCodeBlock = 64;

/// A moment in 8 bits: a byte per element (Note [Dynamic codes]), a scale per block.
struct CodedMoment {
  uint8_t* codes;
  float* scales;
};

/// Update `numel` elements in place; the first element begins a block. Moments are dequantised,
/// updated in the values' dtype, and quantised with new scales. The new values come from the
/// updated moments before these are quantised. A block's bits depend on its own elements only, not
/// on numel, address or processor. The arrays do not overlap.
void adamw8bit_update(float* values, const float* gradient, const CodedMoment& moment1,
                      const CodedMoment& moment2, int64_t numel,
                      const AdamwCoefficients& coefficients);
void adamw8bit_update(double* values, const double* gradient, const CodedMoment& moment1,
                      const CodedMoment& moment2, int64_t numel,
                      const AdamwCoefficients& coefficients);
void lion8bit_update(float* values, const float* gradient, const CodedMoment& momentum,
                     int64_t numel, const LionCoefficients& coefficients);
void lion8bit_update(double* values, const double* gradient, const CodedMoment& momentum,
                     int64_t numel, const LionCoefficients& coefficients);

/// quantize() writes the codes and scales of `values` to `moment`, as at the end of an update.
/// dequantize() writes the numbers that the codes stand for to `values`, as at the beginning of an
/// update. `values` are [numel] and begin at the start of a block. `is_signed`: true for first
/// moments, false for second ones, which are at least 0.
void quantize(const float* values, const CodedMoment& moment, int64_t numel, bool is_signed);
void dequantize(const CodedMoment& moment, float* values, int64_t numel, bool is_signed);

}  // namespace tessera::internal
