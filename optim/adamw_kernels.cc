#include "tessera/optim/adamw_kernels.h"

#include <cmath>

#include "tessera/core/step/vector_targets.h"

namespace tessera {

namespace {

/// Inlined into each of the functions below, to be compiled for their targets. The order of
/// operations is torch::optim::AdamW's.
template <typename T>
__attribute__((always_inline)) inline void adamw_update_of(T* __restrict values,
                                                           const T* __restrict gradient,
                                                           T* __restrict moment1,
                                                           T* __restrict moment2, int64_t numel,
                                                           const AdamwCoefficients& coefficients) {
  const T scale = static_cast<T>(coefficients.gradient_scale);
  const T decay = static_cast<T>(coefficients.decay);
  const T beta1 = static_cast<T>(coefficients.beta1);
  const T rest1 = static_cast<T>(1.0 - coefficients.beta1);
  const T beta2 = static_cast<T>(coefficients.beta2);
  const T rest2 = static_cast<T>(1.0 - coefficients.beta2);
  const T step_size = static_cast<T>(-coefficients.step_size);
  const T root_correction2 = static_cast<T>(coefficients.root_correction2);
  const T eps = static_cast<T>(coefficients.eps);
  for (int64_t i = 0; i < numel; ++i) {
    const T g = gradient[i] * scale;
    const T m = moment1[i] * beta1 + rest1 * g;
    const T v = moment2[i] * beta2 + rest2 * g * g;
    const T denominator = std::sqrt(v) / root_correction2 + eps;
    moment1[i] = m;
    moment2[i] = v;
    values[i] = values[i] * decay + step_size * m / denominator;
  }
}

}  // namespace

TESSERA_VECTOR_TARGETS void adamw_update(float* values, const float* gradient, float* moment1,
                                         float* moment2, int64_t numel,
                                         const AdamwCoefficients& coefficients) {
  adamw_update_of(values, gradient, moment1, moment2, numel, coefficients);
}

TESSERA_VECTOR_TARGETS void adamw_update(double* values, const double* gradient, double* moment1,
                                         double* moment2, int64_t numel,
                                         const AdamwCoefficients& coefficients) {
  adamw_update_of(values, gradient, moment1, moment2, numel, coefficients);
}

}  // namespace tessera
