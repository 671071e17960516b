#pragma once

#include <cstdint>

#include "tessera/optim/formulas/adamw_element.h"

namespace tessera::internal {

/// One AdamW update of `numel` elements in place; computes in the elements' type, with every
/// coefficient rounded to it once. Elementwise: the bits of an element do not depend on numel,
/// address or processor. `maximum`: the largest second moments, under AMSGrad; null without. The
/// arrays do not overlap.
void adamw_update(float* values, const float* gradient, float* moment1, float* moment2,
                  float* maximum, int64_t numel, const AdamwCoefficients& coefficients);
void adamw_update(double* values, const double* gradient, double* moment1, double* moment2,
                  double* maximum, int64_t numel, const AdamwCoefficients& coefficients);

}  // namespace tessera::internal
