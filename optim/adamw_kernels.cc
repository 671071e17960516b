#include "tessera/optim/adamw_kernels.h"

#include "tessera/core/numbers/vector_targets.h"

namespace tessera::internal {

namespace {

/// Inlined into each of the functions below, to be compiled for their targets.
template <typename T>
__attribute__((always_inline)) inline void adamw_update_of(T* __restrict values,
                                                           const T* __restrict gradient,
                                                           T* __restrict moment1,
                                                           T* __restrict moment2, int64_t numel,
                                                           const AdamwCoefficients& coefficients) {
  const AdamwScalars<T> scalars = adamw_scalars<T>(coefficients);
  for (int64_t i = 0; i < numel; ++i) {
    const AdamwElement<T> after =
        adamw_element({values[i], moment1[i], moment2[i]}, gradient[i], scalars);
    moment1[i] = after.moment1;
    moment2[i] = after.moment2;
    values[i] = after.value;
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

}  // namespace tessera::internal
