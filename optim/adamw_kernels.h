#pragma once

#include <cstdint>

namespace tessera {

/// One parameter's numbers for one update.
struct AdamwCoefficients {
  double gradient_scale;  ///< multiplies the gradient first
  double decay;           ///< 1 - lr * weight_decay
  double beta1;
  double beta2;
  double step_size;         ///< lr / (1 - beta1^step)
  double root_correction2;  ///< sqrt(1 - beta2^step)
  double eps;
};

/// One AdamW update of `numel` elements in place; computes in the elements' type, with every
/// coefficient rounded to it once. Elementwise: the bits of an element do not depend on numel,
/// address or processor. The arrays do not overlap.
void adamw_update(float* values, const float* gradient, float* moment1, float* moment2,
                  int64_t numel, const AdamwCoefficients& coefficients);
void adamw_update(double* values, const double* gradient, double* moment1, double* moment2,
                  int64_t numel, const AdamwCoefficients& coefficients);

}  // namespace tessera
