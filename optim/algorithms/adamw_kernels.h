#pragma once

#include <cstdint>

#include "tessera/optim/formulas/adamw_element.h"

namespace tessera::internal {

/// One AdamW update of `numel` elements in place; computes in the elements' type, to which every
/// coefficient is rounded once. Elementwise: the bits of an element do not depend on numel, address
/// or processor. `maximum`: under AMSGrad, the largest second moment of each element so far; null
/// without AMSGrad. The arrays do not overlap.
void adamw_update(float* values, const float* gradient, float* moment1, float* moment2,
                  float* maximum, int64_t numel, const AdamwCoefficients& coefficients);
void adamw_update(double* values, const double* gradient, double* moment1, double* moment2,
                  double* maximum, int64_t numel, const AdamwCoefficients& coefficients);

}  // namespace tessera::internal
