#include "tessera/optim/algorithms/lamb.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/lamb_options.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/fields_with_betas.h"
#include "tessera/optim/algorithm/whole_update.h"

namespace tessera::internal {

namespace {

/// One parameter's numbers for one update.
struct LambCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double beta1;
  double beta2;
  double correction1;  // 1 - beta1^step
  double correction2;  // 1 - beta2^step
  double eps;
  double weight_decay;
};

/// Updates the moments and writes the direction. On entry `direction` holds the values.
template <typename T>
[[gnu::always_inline]] inline void lamb_direction_of(T* direction, const T* gradient, T* moment1,
                                                     T* moment2, int64_t numel,
                                                     const LambCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const auto beta1 = static_cast<T>(by.beta1);
  const auto rest1 = static_cast<T>(1.0 - by.beta1);
  const auto beta2 = static_cast<T>(by.beta2);
  const auto rest2 = static_cast<T>(1.0 - by.beta2);
  const auto correction1 = static_cast<T>(by.correction1);
  const auto correction2 = static_cast<T>(by.correction2);
  const auto eps = static_cast<T>(by.eps);
  const auto weight_decay = static_cast<T>(by.weight_decay);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        const T g = gradient[i] * scale;
        const T m = moment1[i] * beta1 + g * rest1;
        const T v = moment2[i] * beta2 + g * g * rest2;
        moment1[i] = m;
        moment2[i] = v;
        const T step = m / correction1 / (std::sqrt(v / correction2) + eps);
        direction[i] = step + direction[i] * weight_decay;
      });
}

TESSERA_VECTOR_TARGETS void lamb_direction(float* direction, const float* gradient, float* moment1,
                                           float* moment2, int64_t numel,
                                           const LambCoefficients& by) {
  lamb_direction_of(direction, gradient, moment1, moment2, numel, by);
}
TESSERA_VECTOR_TARGETS void lamb_direction(double* direction, const double* gradient,
                                           double* moment1, double* moment2, int64_t numel,
                                           const LambCoefficients& by) {
  lamb_direction_of(direction, gradient, moment1, moment2, numel, by);
}

struct LambDirection {
  using Options = LambOptions;
  using Coefficients = LambCoefficients;
  static constexpr size_t kStates = 2;

  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const auto [beta1, beta2] = options.betas();
    const auto exponent = static_cast<double>(step);
    return {.gradient_scale = gradient_scale,
            .beta1 = beta1,
            .beta2 = beta2,
            .correction1 = 1.0 - std::pow(beta1, exponent),
            .correction2 = 1.0 - std::pow(beta2, exponent),
            .eps = options.eps(),
            .weight_decay = options.weight_decay()};
  }

  template <typename T>
  static void apply(T* direction, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    lamb_direction(direction, gradient, states[0], states[1], numel, coefficients);
  }
};

/// Replaces `values` by values - rate * direction.
template <typename T>
[[gnu::always_inline]] inline void lamb_apply_of(T* values, const T* direction, int64_t numel,
                                                 T rate) {
  for_each_element(
      numel, [=](int64_t i)
                 __attribute__((always_inline)) { values[i] = values[i] - direction[i] * rate; });
}

TESSERA_VECTOR_TARGETS void lamb_apply(float* values, const float* direction, int64_t numel,
                                       float rate) {
  lamb_apply_of(values, direction, numel, rate);
}
TESSERA_VECTOR_TARGETS void lamb_apply(double* values, const double* direction, int64_t numel,
                                       double rate) {
  lamb_apply_of(values, direction, numel, rate);
}

class LambParameter final : public WholeUpdate {
 public:
  Needs needs() const override { return Needs::kNorms; }
  void apply(const Options& options, const Whole& whole, float* values, const float* direction,
             int64_t numel) const override {
    lamb_apply(values, direction, numel, static_cast<float>(rate(options, whole)));
  }
  void apply(const Options& options, const Whole& whole, double* values, const double* direction,
             int64_t numel) const override {
    lamb_apply(values, direction, numel, rate(options, whole));
  }

 private:
  static double rate(const Options& options, const Whole& whole) {
    const double lr = static_cast<const LambOptions&>(options).lr();
    const bool has_norms = whole.norm_of_values != 0.0 && whole.norm_of_direction != 0.0;
    return has_norms ? lr * (whole.norm_of_values / whole.norm_of_direction) : lr;
  }
};

}  // namespace

const Algorithm& lamb_algorithm() {
  static const Algorithm algorithm = {.name = "LAMB",
                                      .options_name = "LambOptions",
                                      .accepts = &has_type<LambOptions>,
                                      .hyper_parameters = fields_with_betas<LambOptions>(),
                                      .states = {{{"exp_avg"}}, {{"exp_avg_sq"}}},
                                      .make_update = &make_element_update<LambDirection>,
                                      .make_whole = []() -> std::unique_ptr<WholeUpdate> {
                                        return std::make_unique<LambParameter>();
                                      }};
  return algorithm;
}

}  // namespace tessera::internal
