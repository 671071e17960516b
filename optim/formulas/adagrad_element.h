#pragma once

#include <cmath>
#include <cstdint>

#include "tessera/core/numbers/device_code.h"

// The arithmetic of Adagrad, once for the loops on the CPU and for the kernels on the GPU.
namespace tessera::internal {

/// The numbers of a parameter group.
struct AdagradHyperParameters {
  double lr;
  double lr_decay;
  double eps;
  double weight_decay;
};

/// One parameter's numbers for one update.
struct AdagradCoefficients {
  double gradient_scale;  ///< multiplies the gradient first
  double weight_decay;
  double rate;  ///< negative: -lr / (1 + (step - 1) * lr_decay)
  double eps;
};

TESSERA_DEVICE_CODE inline AdagradCoefficients adagrad_coefficients(
    const AdagradHyperParameters& group, int64_t step, double gradient_scale) {
  const auto before = static_cast<double>(step - 1);
  return {.gradient_scale = gradient_scale,
          .weight_decay = group.weight_decay,
          .rate = -(group.lr / (1.0 + before * group.lr_decay)),
          .eps = group.eps};
}

/// AdagradCoefficients, each rounded once to T, the type in which elements are updated.
template <typename T>
struct AdagradScalars {
  T scale;
  T weight_decay;
  T rate;
  T eps;
};

template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline AdagradScalars<T> adagrad_scalars(
    const AdagradCoefficients& from) {
  return {.scale = static_cast<T>(from.gradient_scale),
          .weight_decay = static_cast<T>(from.weight_decay),
          .rate = static_cast<T>(from.rate),
          .eps = static_cast<T>(from.eps)};
}

/// Updates one element in place; `sum` is the sum of the gradients' squares. Multiplications are
/// fused with the additions after them where at::add and at::addcmul fuse them.
template <bool kDecays, typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline void adagrad_element(
    T& value, T gradient, T& sum, const AdagradScalars<T>& by) {
  T g = gradient * by.scale;
  if constexpr (kDecays) g = std::fma(by.weight_decay, value, g);
  const T squares = std::fma(g, g, sum);
  sum = squares;
  value = value + by.rate * g / (std::sqrt(squares) + by.eps);
}

}  // namespace tessera::internal
