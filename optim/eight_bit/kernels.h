#pragma once

#include <cstdint>

#include "tessera/optim/formulas/adamw_element.h"
#include "tessera/optim/formulas/lion_element.h"

namespace tessera::internal {

/// Elements of a parameter, counted from its start in memory order, whose codes share one scale.
inline constexpr int64_t kCodeBlock = 64;

/// A moment in 8 bits: a byte per element (Note [Dynamic codes]), a scale per block.
struct CodedMoment {
  uint8_t* codes;
  float* scales;
};

/// One update of `numel` elements, the first one at the beginning of a block, in place: moments are
/// dequantised, updated in T, and quantised with new scales. Values are updated with the moments
/// before these are quantised again. A block's bits depend on its own elements only, not on numel,
/// address or processor. The arrays do not overlap.
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

/// The quantisation after an update and the dequantisation before it. `values` are [numel] and
/// begin at the start of a block. `is_signed`: a first moment; second moments are at least 0.
void quantize(const float* values, const CodedMoment& moment, int64_t numel, bool is_signed);
void dequantize(const CodedMoment& moment, float* values, int64_t numel, bool is_signed);

}  // namespace tessera::internal
