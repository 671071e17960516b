#include "tessera/optim/lion.h"

#include <array>
#include <cstdint>
#include <tuple>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/lion_options.h"
#include "tessera/optim/element_loop.h"
#include "tessera/optim/element_update.h"

namespace tessera::internal {

namespace {

/// One parameter's numbers for one update.
struct LionCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double decay;           // 1 - lr * weight_decay
  double beta1;
  double beta2;
  double lr;
};

template <typename T>
[[gnu::always_inline]] inline void lion_update_of(T* values, const T* gradient, T* momentum,
                                                  int64_t numel, const LionCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const auto decay = static_cast<T>(by.decay);
  const auto beta1 = static_cast<T>(by.beta1);
  const auto rest1 = static_cast<T>(1.0 - by.beta1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto rest2 = static_cast<T>(1.0 - by.beta2);
  const auto rate = static_cast<T>(by.lr);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        const T g = gradient[i] * scale;
        const T m = momentum[i];
        const T direction = m * beta1 + g * rest1;
        // As at::sign, but for NaN, which stays: who divides by zero is to see it.
        const T sign = direction > 0 ? T(1) : direction < 0 ? T(-1) : direction;
        momentum[i] = m * beta2 + g * rest2;
        values[i] = values[i] * decay - rate * sign;
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

struct LionUpdate {
  using Options = LionOptions;
  using Coefficients = LionCoefficients;
  static constexpr size_t kStates = 1;

  static bool is_counted(const Options&) { return true; }
  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    const auto [beta1, beta2] = options.betas();
    return {.gradient_scale = gradient_scale,
            .decay = 1.0 - options.lr() * options.weight_decay(),
            .beta1 = beta1,
            .beta2 = beta2,
            .lr = options.lr()};
  }

  template <typename T>
  static void apply(T* values, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    lion_update(values, gradient, states[0], numel, coefficients);
  }
};

}  // namespace

const Algorithm& lion_algorithm() {
  using Field = HyperParameterField;
  static const Algorithm algorithm = {
      .name = "Lion",
      .options_name = "LionOptions",
      .accepts = &has_type<LionOptions>,
      .hyper_parameters = {Field::number<LionOptions>(
                               "lr", [](auto& of) -> auto& { return of.lr(); }),
                           Field::number<LionOptions>(
                               "beta1", [](auto& of) -> auto& { return std::get<0>(of.betas()); },
                               /*end=*/1),
                           Field::number<LionOptions>(
                               "beta2", [](auto& of) -> auto& { return std::get<1>(of.betas()); },
                               /*end=*/1),
                           Field::number<LionOptions>(
                               "weight_decay",
                               [](auto& of) -> auto& { return of.weight_decay(); })},
      .states = {{{"exp_avg"}}},
      .make_update = &make_element_update<LionUpdate>};
  return algorithm;
}

}  // namespace tessera::internal
