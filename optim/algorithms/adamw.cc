#include "tessera/optim/algorithms/adamw.h"

#include <array>
#include <cmath>

#include <torch/optim/adamw.h>

#include "tessera/optim/algorithm/adam_hyper_parameters.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/fields_with_betas.h"
#include "tessera/optim/algorithms/adamw_kernels.h"

namespace tessera::internal {

namespace {

using torch::optim::AdamWOptions;

struct AdamwUpdate {
  using Options = AdamWOptions;
  struct Coefficients {
    AdamwCoefficients numbers;
    bool is_amsgrad;
  };
  static constexpr size_t kStates = 3;

  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const AdamHyperParameters now = adam_hyper_parameters<AdamWOptions>(options);
    const auto exponent = static_cast<double>(step);
    return {.numbers = adamw_coefficients(now, std::pow(now.beta1, exponent),
                                          std::pow(now.beta2, exponent), gradient_scale),
            .is_amsgrad = now.is_amsgrad};
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    // If the options have AMSGrad switched off, maxima that are still kept are left alone.
    adamw_update(values, gradient, states[0], states[1],
                 coefficients.is_amsgrad ? states[2] : nullptr, numel, coefficients.numbers);
  }
};

}  // namespace

const Algorithm& adamw_algorithm() {
  static const Algorithm algorithm = {
      .name = "AdamW",
      .options_name = "AdamWOptions",
      .accepts = &has_type<AdamWOptions>,
      .hyper_parameters = fields_with_betas<AdamWOptions>(),
      .states = {{{"exp_avg"}}, {{"exp_avg_sq"}}, {{"max_exp_avg_sq"}, &is_amsgrad<AdamWOptions>}},
      .make_update = &make_element_update<AdamwUpdate>,
      .on_device = device_rule<&adam_hyper_parameters<AdamWOptions>>(cuda::Rule::kAdamw)};
  return algorithm;
}

}  // namespace tessera::internal
