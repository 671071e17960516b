#include "tessera/optim/adagrad.h"

#include <array>
#include <cmath>
#include <cstdint>

#include <torch/optim/adagrad.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/element_loop.h"
#include "tessera/optim/element_update.h"

namespace tessera::internal {

namespace {

using torch::optim::AdagradOptions;

/// One parameter's numbers for one update.
struct AdagradCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double weight_decay;
  double rate;  // negative: -lr / (1 + (step - 1) * lr_decay)
  double eps;
};

/// Multiplications are fused with the additions behind them where at::add and at::addcmul fuse
/// them.
template <bool kDecays, typename T>
[[gnu::always_inline]] inline void adagrad_update_of(T* values, const T* gradient, T* sum,
                                                     int64_t numel, const AdagradCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const auto weight_decay = static_cast<T>(by.weight_decay);
  const auto rate = static_cast<T>(by.rate);
  const auto eps = static_cast<T>(by.eps);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T g = gradient[i] * scale;
        if constexpr (kDecays) g = std::fma(weight_decay, values[i], g);
        const T squares = std::fma(g, g, sum[i]);
        sum[i] = squares;
        values[i] = values[i] + rate * g / (std::sqrt(squares) + eps);
      });
}

template <typename T>
[[gnu::always_inline]] inline void adagrad_update_in(T* values, const T* gradient, T* sum,
                                                     int64_t numel, const AdagradCoefficients& by) {
  if (by.weight_decay == 0.0) {
    adagrad_update_of<false>(values, gradient, sum, numel, by);
  } else {
    adagrad_update_of<true>(values, gradient, sum, numel, by);
  }
}

TESSERA_FMA_TARGETS void adagrad_update(float* values, const float* gradient, float* sum,
                                        int64_t numel, const AdagradCoefficients& by) {
  adagrad_update_in(values, gradient, sum, numel, by);
}
TESSERA_FMA_TARGETS void adagrad_update(double* values, const double* gradient, double* sum,
                                        int64_t numel, const AdagradCoefficients& by) {
  adagrad_update_in(values, gradient, sum, numel, by);
}

struct AdagradUpdate {
  using Options = AdagradOptions;
  using Coefficients = AdagradCoefficients;
  static constexpr size_t kStates = 1;

  static double initial_state(const Options& options) {
    return options.initial_accumulator_value();
  }
  static bool is_counted(const Options&) { return true; }
  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const auto before = static_cast<double>(step - 1);
    return {.gradient_scale = gradient_scale,
            .weight_decay = options.weight_decay(),
            .rate = -(options.lr() / (1.0 + before * options.lr_decay())),
            .eps = options.eps()};
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    adagrad_update(values, gradient, states[0], numel, coefficients);
  }
};

}  // namespace

const Algorithm& adagrad_algorithm() {
  using Field = HyperParameterField;
  static const Algorithm algorithm = {
      .name = "Adagrad",
      .options_name = "AdagradOptions",
      .accepts = &has_type<AdagradOptions>,
      .hyper_parameters = {Field::number<AdagradOptions>(
                               "lr", [](auto& of) -> auto& { return of.lr(); }),
                           Field::number<AdagradOptions>(
                               "lr_decay", [](auto& of) -> auto& { return of.lr_decay(); }),
                           Field::number<AdagradOptions>(
                               "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }),
                           Field::number<AdagradOptions>(
                               "initial_accumulator_value",
                               [](auto& of) -> auto& { return of.initial_accumulator_value(); }),
                           Field::number<AdagradOptions>(
                               "eps", [](auto& of) -> auto& { return of.eps(); })},
      .states = {{{"sum"}}},
      .make_update = &make_element_update<AdagradUpdate>};
  return algorithm;
}

}  // namespace tessera::internal
