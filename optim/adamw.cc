#include "tessera/optim/adamw.h"

#include <array>
#include <cmath>
#include <tuple>

#include "tessera/optim/adamw_kernels.h"
#include "tessera/optim/device_adamw.h"
#include "tessera/optim/flat_elementwise.h"

namespace tessera::internal {

namespace {

using torch::optim::AdamWOptions;

struct AdamwUpdate {
  using Options = AdamWOptions;
  using Coefficients = AdamwCoefficients;
  static constexpr size_t kStates = 2;

  static bool is_counted(const Options&) { return true; }
  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const AdamwHyperParameters now = adamw_hyper_parameters(options);
    const auto exponent = static_cast<double>(step);
    return adamw_coefficients(now, std::pow(now.beta1, exponent), std::pow(now.beta2, exponent),
                              gradient_scale);
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    adamw_update(values, gradient, states[0], states[1], numel, coefficients);
  }
};

}  // namespace

AdamwHyperParameters adamw_hyper_parameters(const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  return {.lr = options.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = options.eps(),
          .weight_decay = options.weight_decay()};
}

const Algorithm& adamw_algorithm() {
  using Field = HyperParameterField;
  static const Algorithm algorithm = {
      .name = "AdamW",
      .options_name = "AdamWOptions",
      .accepts = &has_type<AdamWOptions>,
      .hyper_parameters = {Field::number<AdamWOptions>(
                               "lr", [](auto& of) -> auto& { return of.lr(); }),
                           Field::number<AdamWOptions>(
                               "beta1", [](auto& of) -> auto& { return std::get<0>(of.betas()); },
                               /*end=*/1),
                           Field::number<AdamWOptions>(
                               "beta2", [](auto& of) -> auto& { return std::get<1>(of.betas()); },
                               /*end=*/1),
                           Field::number<AdamWOptions>(
                               "eps", [](auto& of) -> auto& { return of.eps(); }),
                           Field::number<AdamWOptions>(
                               "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }),
                           Field::toggle<AdamWOptions>(
                               "amsgrad", [](auto& of) -> auto& { return of.amsgrad(); },
                               "AMSGrad is not available yet")},
      .states = {{"exp_avg"}, {"exp_avg_sq"}},
      .make_host = &make_flat_elementwise<AdamwUpdate>,
      .make_device = &make_device_adamw};
  return algorithm;
}

}  // namespace tessera::internal
