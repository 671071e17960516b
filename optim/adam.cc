#include "tessera/optim/adam.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>

#include <torch/optim/adam.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/element_loop.h"
#include "tessera/optim/element_update.h"

namespace tessera::internal {

namespace {

using torch::optim::AdamOptions;

/// One parameter's numbers for one update.
struct AdamCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double weight_decay;
  double beta1;
  double beta2;
  double rate;              // negative: -lr / (1 - beta1^step)
  double root_correction2;  // sqrt(1 - beta2^step)
  double eps;
  bool is_amsgrad;
};

/// `maximum`: of the second moments, under AMSGrad. Multiplications are fused with the additions
/// behind them where at::add and at::addcmul fuse them.
template <bool kDecays, bool kAmsgrad, typename T>
[[gnu::always_inline]] inline void adam_update_of(T* values, const T* gradient, T* moment1,
                                                  T* moment2, T* maximum, int64_t numel,
                                                  const AdamCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const auto weight_decay = static_cast<T>(by.weight_decay);
  const auto beta1 = static_cast<T>(by.beta1);
  const auto rest1 = static_cast<T>(1.0 - by.beta1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto rest2 = static_cast<T>(1.0 - by.beta2);
  const auto rate = static_cast<T>(by.rate);
  const auto root_correction2 = static_cast<T>(by.root_correction2);
  const auto eps = static_cast<T>(by.eps);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T g = gradient[i] * scale;
        if constexpr (kDecays) g = std::fma(weight_decay, values[i], g);
        const T m = std::fma(rest1, g, moment1[i] * beta1);
        const T v = std::fma(rest2 * g, g, moment2[i] * beta2);
        moment1[i] = m;
        moment2[i] = v;
        T bound = v;
        if constexpr (kAmsgrad) {
          bound = maximum[i] >= v || maximum[i] != maximum[i] ? maximum[i] : v;  // keeps NaN
          maximum[i] = bound;
        }
        const T denominator = std::sqrt(bound) / root_correction2 + eps;
        values[i] = values[i] + rate * m / denominator;
      });
}

template <typename T>
[[gnu::always_inline]] inline void adam_update_in(T* values, const T* gradient,
                                                  const std::array<T*, 3>& states, int64_t numel,
                                                  const AdamCoefficients& by) {
  const auto [m, v, maximum] = states;
  if (by.weight_decay == 0.0 && !by.is_amsgrad) {
    adam_update_of<false, false>(values, gradient, m, v, maximum, numel, by);
  } else if (by.weight_decay == 0.0) {
    adam_update_of<false, true>(values, gradient, m, v, maximum, numel, by);
  } else if (!by.is_amsgrad) {
    adam_update_of<true, false>(values, gradient, m, v, maximum, numel, by);
  } else {
    adam_update_of<true, true>(values, gradient, m, v, maximum, numel, by);
  }
}

TESSERA_FMA_TARGETS void adam_update(float* values, const float* gradient,
                                     const std::array<float*, 3>& states, int64_t numel,
                                     const AdamCoefficients& by) {
  adam_update_in(values, gradient, states, numel, by);
}
TESSERA_FMA_TARGETS void adam_update(double* values, const double* gradient,
                                     const std::array<double*, 3>& states, int64_t numel,
                                     const AdamCoefficients& by) {
  adam_update_in(values, gradient, states, numel, by);
}

struct AdamUpdate {
  using Options = AdamOptions;
  using Coefficients = AdamCoefficients;
  static constexpr size_t kStates = 3;

  static bool is_counted(const Options&) { return true; }
  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const auto [beta1, beta2] = options.betas();
    const auto exponent = static_cast<double>(step);
    return {.gradient_scale = gradient_scale,
            .weight_decay = options.weight_decay(),
            .beta1 = beta1,
            .beta2 = beta2,
            .rate = -(options.lr() / (1.0 - std::pow(beta1, exponent))),
            .root_correction2 = std::sqrt(1.0 - std::pow(beta2, exponent)),
            .eps = options.eps(),
            .is_amsgrad = options.amsgrad()};
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    adam_update(values, gradient, states, numel, coefficients);
  }
};

bool adam_is_amsgrad(const torch::optim::OptimizerOptions& options) {
  return static_cast<const AdamOptions&>(options).amsgrad();
}

}  // namespace

const Algorithm& adam_algorithm() {
  using Field = HyperParameterField;
  static const Algorithm algorithm = {
      .name = "Adam",
      .options_name = "AdamOptions",
      .accepts = &has_type<AdamOptions>,
      .hyper_parameters = {Field::number<AdamOptions>(
                               "lr", [](auto& of) -> auto& { return of.lr(); }),
                           Field::number<AdamOptions>(
                               "beta1", [](auto& of) -> auto& { return std::get<0>(of.betas()); },
                               /*end=*/1),
                           Field::number<AdamOptions>(
                               "beta2", [](auto& of) -> auto& { return std::get<1>(of.betas()); },
                               /*end=*/1),
                           Field::number<AdamOptions>(
                               "eps", [](auto& of) -> auto& { return of.eps(); }),
                           Field::number<AdamOptions>(
                               "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }),
                           Field::toggle<AdamOptions>(
                               "amsgrad", [](auto& of) -> auto& { return of.amsgrad(); },
                               /*chooses_states=*/true)},
      .states = {{{"exp_avg"}}, {{"exp_avg_sq"}}, {{"max_exp_avg_sq"}, &adam_is_amsgrad}},
      .make_update = &make_element_update<AdamUpdate>};
  return algorithm;
}

}  // namespace tessera::internal
