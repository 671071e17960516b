#pragma once

#include <cmath>

#include "tessera/core/numbers/device_code.h"
#include "tessera/optim/formulas/adam_hyper_parameters.h"

// The arithmetic of AdamW, once for the loops on the CPU and for the kernels on the GPU.
namespace tessera::internal {

/// One parameter's numbers for one update.
struct AdamwCoefficients {
  double gradient_scale;  ///< the gradient is first multiplied by this
  double decay;           ///< 1 - lr * weight_decay
  double beta1;
  double beta2;
  double step_size;         ///< lr / (1 - beta1^step)
  double root_correction2;  ///< sqrt(1 - beta2^step)
  double eps;
};

/// Returns the numbers for one update; `power1` and `power2` are beta1^step and beta2^step.
TESSERA_DEVICE_CODE inline AdamwCoefficients adamw_coefficients(const AdamHyperParameters& group,
                                                                double power1, double power2,
                                                                double gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .decay = 1.0 - group.lr * group.weight_decay,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .step_size = group.lr / (1.0 - power1),
          .root_correction2 = std::sqrt(1.0 - power2),
          .eps = group.eps};
}

/// AdamwCoefficients as an element needs them, each rounded to T once.
template <typename T>
struct AdamwScalars {
  T scale;
  T decay;
  T beta1;
  T rest1;
  T beta2;
  T rest2;
  T step_size;  ///< the negative of AdamwCoefficients::step_size
  T root_correction2;
  T eps;
};

template <typename T>
TESSERA_DEVICE_CODE inline AdamwScalars<T> adamw_scalars(const AdamwCoefficients& coefficients) {
  return {.scale = static_cast<T>(coefficients.gradient_scale),
          .decay = static_cast<T>(coefficients.decay),
          .beta1 = static_cast<T>(coefficients.beta1),
          .rest1 = static_cast<T>(1.0 - coefficients.beta1),
          .beta2 = static_cast<T>(coefficients.beta2),
          .rest2 = static_cast<T>(1.0 - coefficients.beta2),
          .step_size = static_cast<T>(-coefficients.step_size),
          .root_correction2 = static_cast<T>(coefficients.root_correction2),
          .eps = static_cast<T>(coefficients.eps)};
}

template <typename T>
struct AdamwElement {
  T value;
  T moment1;
  T moment2;
};

/// Returns the new value. `moment1` and `moment2` are the updated moments; under AMSGrad, `moment2`
/// is the largest second moment so far.
template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline T adamw_value(T value, T moment1, T moment2,
                                                                const AdamwScalars<T>& by) {
  const T denominator = std::sqrt(moment2) / by.root_correction2 + by.eps;
  return value * by.decay + by.step_size * moment1 / denominator;
}

/// Returns one element after its update. The order of operations is torch::optim::AdamW's.
template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline AdamwElement<T> adamw_element(
    const AdamwElement<T>& before, T gradient, const AdamwScalars<T>& by) {
  const T g = gradient * by.scale;
  const T m = before.moment1 * by.beta1 + by.rest1 * g;
  const T v = before.moment2 * by.beta2 + by.rest2 * g * g;
  return {adamw_value(before.value, m, v, by), m, v};
}

/// Like adamw_element(), but under AMSGrad (Reddi, Kale and Kumar, arXiv 1904.09237). `maximum`,
/// the largest second moment so far, is updated in place.
template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline AdamwElement<T> amsgrad_element(
    const AdamwElement<T>& before, T& maximum, T gradient, const AdamwScalars<T>& by) {
  const AdamwElement<T> after = adamw_element(before, gradient, by);
  maximum = maximum >= after.moment2 || maximum != maximum ? maximum : after.moment2;  // keeps NaN
  return {adamw_value(before.value, after.moment1, maximum, by), after.moment1, after.moment2};
}

}  // namespace tessera::internal
