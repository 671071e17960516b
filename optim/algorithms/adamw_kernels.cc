#include "tessera/optim/algorithms/adamw_kernels.h"

#include "tessera/core/numbers/vector_targets.h"

namespace tessera::internal {

namespace {

// These functions are inlined into adamw_update() below, so that they are compiled for each
// instruction set that it is compiled for.

template <typename T>
[[gnu::always_inline]] inline void plain_update(T* __restrict values, const T* __restrict gradient,
                                                T* __restrict moment1, T* __restrict moment2,
                                                int64_t numel, const AdamwScalars<T>& by) {
  for (int64_t i = 0; i < numel; ++i) {
    const AdamwElement<T> after =
        adamw_element({values[i], moment1[i], moment2[i]}, gradient[i], by);
    moment1[i] = after.moment1;
    moment2[i] = after.moment2;
    values[i] = after.value;
  }
}

template <typename T>
[[gnu::always_inline]] inline void amsgrad_update(T* __restrict values,
                                                  const T* __restrict gradient,
                                                  T* __restrict moment1, T* __restrict moment2,
                                                  T* __restrict maximum, int64_t numel,
                                                  const AdamwScalars<T>& by) {
  for (int64_t i = 0; i < numel; ++i) {
    T largest = maximum[i];
    const AdamwElement<T> after =
        amsgrad_element({values[i], moment1[i], moment2[i]}, largest, gradient[i], by);
    moment1[i] = after.moment1;
    moment2[i] = after.moment2;
    maximum[i] = largest;
    values[i] = after.value;
  }
}

template <typename T>
[[gnu::always_inline]] inline void update_of(T* values, const T* gradient, T* moment1, T* moment2,
                                             T* maximum, int64_t numel,
                                             const AdamwCoefficients& coefficients) {
  const AdamwScalars<T> by = adamw_scalars<T>(coefficients);
  if (maximum == nullptr) {
    plain_update(values, gradient, moment1, moment2, numel, by);
  } else {
    amsgrad_update(values, gradient, moment1, moment2, maximum, numel, by);
  }
}

}  // namespace

TESSERA_VECTOR_TARGETS void adamw_update(float* values, const float* gradient, float* moment1,
                                         float* moment2, float* maximum, int64_t numel,
                                         const AdamwCoefficients& coefficients) {
  update_of(values, gradient, moment1, moment2, maximum, numel, coefficients);
}

TESSERA_VECTOR_TARGETS void adamw_update(double* values, const double* gradient, double* moment1,
                                         double* moment2, double* maximum, int64_t numel,
                                         const AdamwCoefficients& coefficients) {
  update_of(values, gradient, moment1, moment2, maximum, numel, coefficients);
}

}  // namespace tessera::internal
