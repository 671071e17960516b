#include "tessera/optim/algorithms/rmsprop.h"

#include <array>
#include <cstdint>

#include <torch/optim/rmsprop.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/formulas/rmsprop_element.h"

namespace tessera::internal {

namespace {

using torch::optim::RMSpropOptions;

template <typename T>
struct RmspropStates {
  T* square;    // mean of the gradients' squares
  T* momentum;  // null if no momentum is kept
  T* mean;      // mean of the gradients; null unless centered
};

template <bool kDecays, bool kCentered, bool kMomentum, typename T>
[[gnu::always_inline]] inline void rmsprop_elements(T* values, const T* gradient,
                                                    const RmspropStates<T>& states, int64_t numel,
                                                    const RmspropScalars<T>& by) {
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T value = values[i];
        T square = states.square[i];
        T momentum = kMomentum ? states.momentum[i] : T(0);
        T mean = kCentered ? states.mean[i] : T(0);
        rmsprop_element<kDecays, kCentered, kMomentum>(value, gradient[i], square, momentum, mean,
                                                       by);
        states.square[i] = square;
        if constexpr (kMomentum) states.momentum[i] = momentum;
        if constexpr (kCentered) states.mean[i] = mean;
        values[i] = value;
      });
}

template <bool kDecays, typename T>
[[gnu::always_inline]] inline void rmsprop_update_of(T* values, const T* gradient,
                                                     const RmspropStates<T>& states, int64_t numel,
                                                     const RmspropCoefficients& by) {
  const RmspropScalars<T> scalars = rmsprop_scalars<T>(by);
  const bool has_momentum = by.momentum > 0.0;
  if (by.is_centered && has_momentum) {
    rmsprop_elements<kDecays, true, true>(values, gradient, states, numel, scalars);
  } else if (by.is_centered) {
    rmsprop_elements<kDecays, true, false>(values, gradient, states, numel, scalars);
  } else if (has_momentum) {
    rmsprop_elements<kDecays, false, true>(values, gradient, states, numel, scalars);
  } else {
    rmsprop_elements<kDecays, false, false>(values, gradient, states, numel, scalars);
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

RmspropHyperParameters rmsprop_hyper_parameters(const torch::optim::OptimizerOptions& given) {
  const auto& options = static_cast<const RMSpropOptions&>(given);
  return {.lr = options.lr(),
          .alpha = options.alpha(),
          .eps = options.eps(),
          .weight_decay = options.weight_decay(),
          .momentum = options.momentum(),
          .is_centered = options.centered()};
}

struct RmspropUpdate {
  using Options = RMSpropOptions;
  using Coefficients = RmspropCoefficients;
  static constexpr size_t kStates = 3;

  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    return rmsprop_coefficients(rmsprop_hyper_parameters(options), gradient_scale);
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
      .make_update = &make_element_update<RmspropUpdate>,
      .on_device = device_rule<&rmsprop_hyper_parameters>(cuda::Rule::kRmsprop)};
  return algorithm;
}

}  // namespace tessera::internal
