#include "tessera/optim/algorithms/adam.h"

#include <array>
#include <cmath>
#include <cstdint>

#include <torch/optim/adam.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/algorithm/adam_hyper_parameters.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/fields_with_betas.h"
#include "tessera/optim/formulas/adam_element.h"

namespace tessera::internal {

namespace {

using torch::optim::AdamOptions;

/// Updates `numel` elements in place. `maximum`: the largest second moments so far, used only under
/// AMSGrad.
template <bool kDecays, bool kAmsgrad, typename T>
[[gnu::always_inline]] inline void adam_update_of(T* values, const T* gradient, T* moment1,
                                                  T* moment2, T* maximum, int64_t numel,
                                                  const AdamScalars<T>& by) {
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T value = values[i];
        T m = moment1[i];
        T v = moment2[i];
        T bound = kAmsgrad ? maximum[i] : T(0);
        adam_element<kDecays, kAmsgrad>(value, gradient[i], m, v, bound, by);
        moment1[i] = m;
        moment2[i] = v;
        if constexpr (kAmsgrad) maximum[i] = bound;
        values[i] = value;
      });
}

template <typename T>
[[gnu::always_inline]] inline void adam_update_in(T* values, const T* gradient,
                                                  const std::array<T*, 3>& states, int64_t numel,
                                                  const AdamCoefficients& by) {
  const auto [m, v, maximum] = states;
  const AdamScalars<T> scalars = adam_scalars<T>(by);
  if (by.weight_decay == 0.0 && !by.is_amsgrad) {
    adam_update_of<false, false>(values, gradient, m, v, maximum, numel, scalars);
  } else if (by.weight_decay == 0.0) {
    adam_update_of<false, true>(values, gradient, m, v, maximum, numel, scalars);
  } else if (!by.is_amsgrad) {
    adam_update_of<true, false>(values, gradient, m, v, maximum, numel, scalars);
  } else {
    adam_update_of<true, true>(values, gradient, m, v, maximum, numel, scalars);
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

  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const AdamHyperParameters now = adam_hyper_parameters<AdamOptions>(options);
    const auto exponent = static_cast<double>(step);
    return adam_coefficients(now, std::pow(now.beta1, exponent), std::pow(now.beta2, exponent),
                             gradient_scale);
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    adam_update(values, gradient, states, numel, coefficients);
  }
};

}  // namespace

const Algorithm& adam_algorithm() {
  static const Algorithm algorithm = {
      .name = "Adam",
      .options_name = "AdamOptions",
      .accepts = &has_type<AdamOptions>,
      .hyper_parameters = fields_with_betas<AdamOptions>(),
      .states = {{{"exp_avg"}}, {{"exp_avg_sq"}}, {{"max_exp_avg_sq"}, &is_amsgrad<AdamOptions>}},
      .make_update = &make_element_update<AdamUpdate>,
      .on_device = device_rule<&adam_hyper_parameters<AdamOptions>>(cuda::Rule::kAdam)};
  return algorithm;
}

}  // namespace tessera::internal
