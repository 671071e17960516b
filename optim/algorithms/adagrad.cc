#include "tessera/optim/algorithms/adagrad.h"

#include <array>
#include <cstdint>

#include <torch/optim/adagrad.h>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/algorithm/device_rule.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/formulas/adagrad_element.h"

namespace tessera::internal {

namespace {

using torch::optim::AdagradOptions;

template <bool kDecays, typename T>
[[gnu::always_inline]] inline void adagrad_update_of(T* values, const T* gradient, T* sum,
                                                     int64_t numel, const AdagradScalars<T>& by) {
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        T value = values[i];
        T squares = sum[i];
        adagrad_element<kDecays>(value, gradient[i], squares, by);
        sum[i] = squares;
        values[i] = value;
      });
}

template <typename T>
[[gnu::always_inline]] inline void adagrad_update_in(T* values, const T* gradient, T* sum,
                                                     int64_t numel, const AdagradCoefficients& by) {
  const AdagradScalars<T> scalars = adagrad_scalars<T>(by);
  if (by.weight_decay == 0.0) {
    adagrad_update_of<false>(values, gradient, sum, numel, scalars);
  } else {
    adagrad_update_of<true>(values, gradient, sum, numel, scalars);
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

AdagradHyperParameters adagrad_hyper_parameters(const torch::optim::OptimizerOptions& given) {
  const auto& options = static_cast<const AdagradOptions&>(given);
  return {.lr = options.lr(),
          .lr_decay = options.lr_decay(),
          .eps = options.eps(),
          .weight_decay = options.weight_decay()};
}

double initial_sum(const torch::optim::OptimizerOptions& options) {
  return static_cast<const AdagradOptions&>(options).initial_accumulator_value();
}

struct AdagradUpdate {
  using Options = AdagradOptions;
  using Coefficients = AdagradCoefficients;
  static constexpr size_t kStates = 1;

  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    return adagrad_coefficients(adagrad_hyper_parameters(options), step, gradient_scale);
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
      .states = {{.state = {.name = "sum"}, .initial = &initial_sum}},
      .make_update = &make_element_update<AdagradUpdate>,
      .on_device = device_rule<&adagrad_hyper_parameters>(cuda::Rule::kAdagrad)};
  return algorithm;
}

}  // namespace tessera::internal
