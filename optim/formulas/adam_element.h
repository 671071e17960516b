#pragma once

#include <cmath>

#include "tessera/core/numbers/device_code.h"
#include "tessera/optim/formulas/adam_hyper_parameters.h"

// The arithmetic of Adam with L2 regularisation, written once for both the loops on the CPU and the
// kernels on the GPU.
namespace tessera::internal {

/// One parameter's numbers for one update.
struct AdamCoefficients {
  double gradient_scale;  ///< multiplies the gradient first
  double weight_decay;
  double beta1;
  double beta2;
  double rate;              ///< negative: -lr / (1 - beta1^step)
  double root_correction2;  ///< sqrt(1 - beta2^step)
  double eps;
  bool is_amsgrad;
};

/// Returns the numbers for one update; `power1` and `power2` are beta1^step and beta2^step.
TESSERA_DEVICE_CODE inline AdamCoefficients adam_coefficients(const AdamHyperParameters& group,
                                                              double power1, double power2,
                                                              double gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .weight_decay = group.weight_decay,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .rate = -(group.lr / (1.0 - power1)),
          .root_correction2 = std::sqrt(1.0 - power2),
          .eps = group.eps,
          .is_amsgrad = group.is_amsgrad};
}

/// AdamCoefficients as an element needs them, each rounded to T once.
template <typename T>
struct AdamScalars {
  T scale;
  T weight_decay;
  T beta1;
  T rest1;
  T beta2;
  T rest2;
  T rate;
  T root_correction2;
  T eps;
};

template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline AdamScalars<T> adam_scalars(
    const AdamCoefficients& from) {
  return {.scale = static_cast<T>(from.gradient_scale),
          .weight_decay = static_cast<T>(from.weight_decay),
          .beta1 = static_cast<T>(from.beta1),
          .rest1 = static_cast<T>(1.0 - from.beta1),
          .beta2 = static_cast<T>(from.beta2),
          .rest2 = static_cast<T>(1.0 - from.beta2),
          .rate = static_cast<T>(from.rate),
          .root_correction2 = static_cast<T>(from.root_correction2),
          .eps = static_cast<T>(from.eps)};
}

/// Updates one element in place. `maximum`, the largest second moment so far, is used only under
/// AMSGrad. Multiplications are fused with the additions after them where at::add and at::addcmul
/// fuse them.
template <bool kDecays, bool kAmsgrad, typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline void adam_element(T& value, T gradient,
                                                                    T& moment1, T& moment2,
                                                                    T& maximum,
                                                                    const AdamScalars<T>& by) {
  T g = gradient * by.scale;
  if constexpr (kDecays) g = std::fma(by.weight_decay, value, g);
  const T m = std::fma(by.rest1, g, moment1 * by.beta1);
  const T v = std::fma(by.rest2 * g, g, moment2 * by.beta2);
  moment1 = m;
  moment2 = v;
  T bound = v;
  if constexpr (kAmsgrad) {
    bound = maximum >= v || maximum != maximum ? maximum : v;  // keeps NaN
    maximum = bound;
  }
  const T denominator = std::sqrt(bound) / by.root_correction2 + by.eps;
  value = value + by.rate * m / denominator;
}

}  // namespace tessera::internal
