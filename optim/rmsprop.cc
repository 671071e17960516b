#include "tessera/optim/rmsprop.h"

#include <array>
#include <cmath>
#include <cstdint>

#include <torch/optim/rmsprop.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/element_loop.h"
#include "tessera/optim/element_update.h"

namespace tessera::internal {

namespace {

using torch::optim::RMSpropOptions;

/// One parameter's numbers for one update.
struct RmspropCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double weight_decay;
  double alpha;
  double eps;
  double momentum;
  double rate;  // negative
  bool is_centered;
};

template <typename T>
struct RmspropStates {
  T* square;    // mean of the squares
  T* momentum;  // null without
  T* mean;      // of the gradient; null unless centered
};

/// Multiplications are fused with the additions behind them where at::add and at::addcmul fuse
/// them.
template <bool kDecays, bool kCentered, bool kMomentum, typename T>
[[gnu::always_inline]] inline void rmsprop_elements(T* values, const T* gradient,
                                                    const RmspropStates<T>& states, int64_t numel,
                                                    const RmspropCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const auto weight_decay = static_cast<T>(by.weight_decay);
  const auto alpha = static_cast<T>(by.alpha);
  const auto rest = static_cast<T>(1.0 - by.alpha);
  const auto eps = static_cast<T>(by.eps);
  const auto factor = static_cast<T>(by.momentum);
  const auto rate = static_cast<T>(by.rate);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T g = gradient[i] * scale;
        if constexpr (kDecays) g = std::fma(weight_decay, values[i], g);
        T square = std::fma(rest * g, g, states.square[i] * alpha);
        states.square[i] = square;
        if constexpr (kCentered) {
          const T mean = std::fma(rest, g, states.mean[i] * alpha);
          states.mean[i] = mean;
          square = std::fma(-mean, mean, square);
        }
        const T root = std::sqrt(square) + eps;
        if constexpr (kMomentum) {
          const T step = states.momentum[i] * factor + g / root;
          states.momentum[i] = step;
          values[i] = std::fma(rate, step, values[i]);
        } else {
          values[i] = values[i] + rate * g / root;
        }
      });
}

template <bool kDecays, typename T>
[[gnu::always_inline]] inline void rmsprop_update_of(T* values, const T* gradient,
                                                     const RmspropStates<T>& states, int64_t numel,
                                                     const RmspropCoefficients& by) {
  const bool has_momentum = by.momentum > 0.0;
  if (by.is_centered && has_momentum) {
    rmsprop_elements<kDecays, true, true>(values, gradient, states, numel, by);
  } else if (by.is_centered) {
    rmsprop_elements<kDecays, true, false>(values, gradient, states, numel, by);
  } else if (has_momentum) {
    rmsprop_elements<kDecays, false, true>(values, gradient, states, numel, by);
  } else {
    rmsprop_elements<kDecays, false, false>(values, gradient, states, numel, by);
  }
}

template <typename T>
[[gnu::always_inline]] inline void rmsprop_update_in(T* values, const T* gradient,
                                                     const RmspropStates<T>& states, int64_t numel,
                                                     const RmspropCoefficients& by) {
  if (by.weight_decay == 0.0) {
    rmsprop_update_of<false>(values, gradient, states, numel, by);
  } else {
    rmsprop_update_of<true>(values, gradient, states, numel, by);
  }
}

TESSERA_FMA_TARGETS void rmsprop_update(float* values, const float* gradient,
                                        const RmspropStates<float>& states, int64_t numel,
                                        const RmspropCoefficients& by) {
  rmsprop_update_in(values, gradient, states, numel, by);
}
TESSERA_FMA_TARGETS void rmsprop_update(double* values, const double* gradient,
                                        const RmspropStates<double>& states, int64_t numel,
                                        const RmspropCoefficients& by) {
  rmsprop_update_in(values, gradient, states, numel, by);
}

struct RmspropUpdate {
  using Options = RMSpropOptions;
  using Coefficients = RmspropCoefficients;
  static constexpr size_t kStates = 3;

  static bool is_counted(const Options&) { return true; }
  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    return {.gradient_scale = gradient_scale,
            .weight_decay = options.weight_decay(),
            .alpha = options.alpha(),
            .eps = options.eps(),
            .momentum = options.momentum(),
            .rate = -options.lr(),
            .is_centered = options.centered()};
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    rmsprop_update(values, gradient,
                   RmspropStates<T>{.square = states[0], .momentum = states[1], .mean = states[2]},
                   numel, coefficients);
  }
};

bool rmsprop_has_momentum(const torch::optim::OptimizerOptions& options) {
  return static_cast<const RMSpropOptions&>(options).momentum() > 0.0;
}

bool rmsprop_is_centered(const torch::optim::OptimizerOptions& options) {
  return static_cast<const RMSpropOptions&>(options).centered();
}

}  // namespace

const Algorithm& rmsprop_algorithm() {
  using Field = HyperParameterField;
  static const Algorithm algorithm = {
      .name = "RMSprop",
      .options_name = "RMSpropOptions",
      .accepts = &has_type<RMSpropOptions>,
      .hyper_parameters = {Field::number<RMSpropOptions>(
                               "lr", [](auto& of) -> auto& { return of.lr(); }),
                           Field::number<RMSpropOptions>(
                               "alpha", [](auto& of) -> auto& { return of.alpha(); }),
                           Field::number<RMSpropOptions>(
                               "eps", [](auto& of) -> auto& { return of.eps(); }),
                           Field::number<RMSpropOptions>(
                               "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }),
                           Field::number<RMSpropOptions>(
                               "momentum", [](auto& of) -> auto& { return of.momentum(); }),
                           Field::toggle<RMSpropOptions>(
                               "centered", [](auto& of) -> auto& { return of.centered(); },
                               /*chooses_states=*/true)},
      .states = {{{"square_avg"}},
                 {{"momentum_buffer"}, &rmsprop_has_momentum},
                 {{"grad_avg"}, &rmsprop_is_centered}},
      .make_update = &make_element_update<RmspropUpdate>};
  return algorithm;
}

}  // namespace tessera::internal
