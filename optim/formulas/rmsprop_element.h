#pragma once

#include <cmath>

#include "tessera/core/numbers/device_code.h"

// The arithmetic of RMSprop, once for the loops on the CPU and for the kernels on the GPU.
namespace tessera::internal {

/// The numbers of a parameter group.
struct RmspropHyperParameters {
  double lr;
  double alpha;
  double eps;
  double weight_decay;
  double momentum;
  bool is_centered;
};

/// One parameter's numbers for one update.
struct RmspropCoefficients {
  double gradient_scale;  ///< multiplies the gradient first
  double weight_decay;
  double alpha;
  double eps;
  double momentum;
  double rate;  ///< -lr
  bool is_centered;
};

TESSERA_DEVICE_CODE inline RmspropCoefficients rmsprop_coefficients(
    const RmspropHyperParameters& group, double gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .weight_decay = group.weight_decay,
          .alpha = group.alpha,
          .eps = group.eps,
          .momentum = group.momentum,
          .rate = -group.lr,
          .is_centered = group.is_centered};
}

/// RmspropCoefficients as an element needs them, each rounded to T once.
template <typename T>
struct RmspropScalars {
  T scale;
  T weight_decay;
  T alpha;
  T rest;
  T eps;
  T momentum;
  T rate;
};

template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline RmspropScalars<T> rmsprop_scalars(
    const RmspropCoefficients& from) {
  return {.scale = static_cast<T>(from.gradient_scale),
          .weight_decay = static_cast<T>(from.weight_decay),
          .alpha = static_cast<T>(from.alpha),
          .rest = static_cast<T>(1.0 - from.alpha),
          .eps = static_cast<T>(from.eps),
          .momentum = static_cast<T>(from.momentum),
          .rate = static_cast<T>(from.rate)};
}

/// Updates one element in place; `square_mean` is the mean of the gradients' squares. `momentum`
/// and `mean` (of the gradients) change only if they are used. Multiplications are fused with the
/// additions after them where at::add and at::addcmul fuse them.
template <bool kDecays, bool kCentered, bool kMomentum, typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline void rmsprop_element(
    T& value, T gradient, T& square_mean, T& momentum, T& mean, const RmspropScalars<T>& by) {
  T g = gradient * by.scale;
  if constexpr (kDecays) g = std::fma(by.weight_decay, value, g);
  T square = std::fma(by.rest * g, g, square_mean * by.alpha);
  square_mean = square;
  if constexpr (kCentered) {
    const T m = std::fma(by.rest, g, mean * by.alpha);
    mean = m;
    square = std::fma(-m, m, square);
  }
  const T root = std::sqrt(square) + by.eps;
  if constexpr (kMomentum) {
    const T step = momentum * by.momentum + g / root;
    momentum = step;
    value = std::fma(by.rate, step, value);
  } else {
    value = value + by.rate * g / root;
  }
}

}  // namespace tessera::internal
