#pragma once

#include "tessera/core/numbers/device_code.h"

// The arithmetic of Lion (Chen et al., arXiv 2302.06675, algorithm 2), once for the loops on the
// CPU and for the kernels on the GPU.
namespace tessera::internal {

/// The numbers of a parameter group.
struct LionHyperParameters {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
};

/// One parameter's numbers for one update.
struct LionCoefficients {
  double gradient_scale;  ///< the gradient is first multiplied by this
  double decay;           ///< 1 - lr * weight_decay
  double beta1;
  double beta2;
  double lr;
};

TESSERA_DEVICE_CODE inline LionCoefficients lion_coefficients(const LionHyperParameters& group,
                                                              double gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .decay = 1.0 - group.lr * group.weight_decay,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .lr = group.lr};
}

/// LionCoefficients as an element needs them, each rounded to T once.
template <typename T>
struct LionScalars {
  T scale;
  T decay;
  T beta1;
  T rest1;
  T beta2;
  T rest2;
  T lr;
};

template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline LionScalars<T> lion_scalars(
    const LionCoefficients& from) {
  return {.scale = static_cast<T>(from.gradient_scale),
          .decay = static_cast<T>(from.decay),
          .beta1 = static_cast<T>(from.beta1),
          .rest1 = static_cast<T>(1.0 - from.beta1),
          .beta2 = static_cast<T>(from.beta2),
          .rest2 = static_cast<T>(1.0 - from.beta2),
          .lr = static_cast<T>(from.lr)};
}

/// One element's update in place.
template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline void lion_element(T& value, T gradient,
                                                                    T& momentum,
                                                                    const LionScalars<T>& by) {
  const T g = gradient * by.scale;
  const T m = momentum;
  const T direction = m * by.beta1 + g * by.rest1;
  // Like at::sign, except that NaN stays NaN, so that a bad gradient shows in the values.
  const T sign = direction > 0 ? T(1) : direction < 0 ? T(-1) : direction;
  momentum = m * by.beta2 + g * by.rest2;
  value = value * by.decay - by.lr * sign;
}

}  // namespace tessera::internal
