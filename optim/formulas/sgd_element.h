#pragma once

#include <cmath>
#include <cstdint>

#include "tessera/core/numbers/device_code.h"

// The arithmetic of SGD, once for the loops on the CPU and for the kernels on the GPU.
namespace tessera::internal {

/// The numbers of a parameter group.
struct SgdHyperParameters {
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  bool is_nesterov;
};

/// One parameter's numbers for one update.
struct SgdCoefficients {
  double gradient_scale;  ///< multiplies the gradient first
  double rate;            ///< -lr
  double momentum;
  double rest;  ///< 1 - dampening
  double weight_decay;
  bool is_first;
  bool is_nesterov;
};

/// Returns true if an update counts as a step of the parameter. Only updates with momentum do, so
/// that step 1 is the first update with momentum, whatever came before it. That update stores the
/// gradient in the momentum undampened.
TESSERA_DEVICE_CODE inline bool sgd_is_counted(const SgdHyperParameters& group) {
  return group.momentum != 0.0;
}

TESSERA_DEVICE_CODE inline SgdCoefficients sgd_coefficients(const SgdHyperParameters& group,
                                                            int64_t step, double gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .rate = -group.lr,
          .momentum = group.momentum,
          .rest = 1.0 - group.dampening,
          .weight_decay = group.weight_decay,
          .is_first = step == 1,
          .is_nesterov = group.is_nesterov};
}

/// SgdCoefficients, each rounded once to T, the type in which elements are updated.
template <typename T>
struct SgdScalars {
  T scale;
  T rate;
  T momentum;
  T rest;
  T weight_decay;
};

template <typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline SgdScalars<T> sgd_scalars(
    const SgdCoefficients& from) {
  return {.scale = static_cast<T>(from.gradient_scale),
          .rate = static_cast<T>(from.rate),
          .momentum = static_cast<T>(from.momentum),
          .rest = static_cast<T>(from.rest),
          .weight_decay = static_cast<T>(from.weight_decay)};
}

/// What an update does to the momentum. kNone: leaves it unused. kBegins: stores the gradient in
/// it, in a parameter's first update with momentum. kGoesOn: decays it and adds the gradient to it.
enum class SgdMomentum : uint8_t { kNone, kBegins, kGoesOn };

/// One element's update in place; `momentum` is left alone under kNone. Each multiplication is
/// fused with the addition after it where at::add with a factor fuses them.
template <bool kDecays, SgdMomentum kMomentum, bool kNesterov, typename T>
TESSERA_DEVICE_CODE [[gnu::always_inline]] inline void sgd_element(T& value, T gradient,
                                                                   T& momentum,
                                                                   const SgdScalars<T>& by) {
  T step = gradient * by.scale;
  if constexpr (kDecays) step = std::fma(by.weight_decay, value, step);
  if constexpr (kMomentum != SgdMomentum::kNone) {
    T m = step;
    if constexpr (kMomentum == SgdMomentum::kGoesOn) {
      m = std::fma(by.rest, step, momentum * by.momentum);
    }
    momentum = m;
    step = kNesterov ? std::fma(by.momentum, m, step) : m;
  }
  value = std::fma(by.rate, step, value);
}

}  // namespace tessera::internal
