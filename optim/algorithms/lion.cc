#include "tessera/optim/algorithms/lion.h"

#include <array>
#include <cstdint>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/lion_options.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/fields_with_betas.h"
#include "tessera/optim/formulas/lion_element.h"

namespace tessera::internal {

namespace {

template <typename T>
[[gnu::always_inline]] inline void lion_update_of(T* values, const T* gradient, T* momentum,
                                                  int64_t numel, const LionCoefficients& by) {
  const LionScalars<T> scalars = lion_scalars<T>(by);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T value = values[i];
        T m = momentum[i];
        lion_element(value, gradient[i], m, scalars);
        momentum[i] = m;
        values[i] = value;
      });
}

TESSERA_VECTOR_TARGETS void lion_update(float* values, const float* gradient, float* momentum,
                                        int64_t numel, const LionCoefficients& by) {
  lion_update_of(values, gradient, momentum, numel, by);
}
TESSERA_VECTOR_TARGETS void lion_update(double* values, const double* gradient, double* momentum,
                                        int64_t numel, const LionCoefficients& by) {
  lion_update_of(values, gradient, momentum, numel, by);
}

LionHyperParameters lion_hyper_parameters(const torch::optim::OptimizerOptions& given) {
  const auto& options = static_cast<const LionOptions&>(given);
  const auto [beta1, beta2] = options.betas();
  return {
      .lr = options.lr(), .beta1 = beta1, .beta2 = beta2, .weight_decay = options.weight_decay()};
}

struct LionUpdate {
  using Options = LionOptions;
  using Coefficients = LionCoefficients;
  static constexpr size_t kStates = 1;

  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    return lion_coefficients(lion_hyper_parameters(options), gradient_scale);
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    lion_update(values, gradient, states[0], numel, coefficients);
  }
};

}  // namespace

const Algorithm& lion_algorithm() {
  static const Algorithm algorithm = {
      .name = "Lion",
      .options_name = "LionOptions",
      .accepts = &has_type<LionOptions>,
      .hyper_parameters = fields_with_betas<LionOptions>(),
      .states = {{{"exp_avg"}}},
      .make_update = &make_element_update<LionUpdate>,
      .on_device = device_rule<&lion_hyper_parameters>(cuda::Rule::kLion)};
  return algorithm;
}

}  // namespace tessera::internal
