#include "tessera/optim/eight_bit/eight_bit.h"

#include <cmath>
#include <span>
#include <vector>

#include "tessera/eight_bit_options.h"
#include "tessera/optim/algorithm/adam_hyper_parameters.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/fields_with_betas.h"
#include "tessera/optim/eight_bit/kernels.h"

namespace tessera::internal {

namespace {

/// Returns moment number `moment` of the algorithm; each moment has two states, codes and scales.
CodedMoment moment_in(std::span<void* const> states, size_t moment) {
  return {static_cast<uint8_t*>(states[2 * moment]), static_cast<float*>(states[2 * moment + 1])};
}

struct Adamw8bitUpdate {
  using Options = AdamW8bitOptions;
  using Coefficients = AdamwCoefficients;
  static constexpr size_t kStates = 4;

  static Coefficients coefficients(const Options& options, int64_t step, double gradient_scale) {
    const AdamHyperParameters now = adam_hyper_parameters<AdamW8bitOptions>(options);
    const auto exponent = static_cast<double>(step);
    return adamw_coefficients(now, std::pow(now.beta1, exponent), std::pow(now.beta2, exponent),
                              gradient_scale);
  }

  template <typename T>
  static void apply(T* values, const T* gradient, std::span<void* const> states, int64_t numel,
                    const Coefficients& coefficients) {
    adamw8bit_update(values, gradient, moment_in(states, 0), moment_in(states, 1), numel,
                     coefficients);
  }
};

struct Lion8bitUpdate {
  using Options = Lion8bitOptions;
  using Coefficients = LionCoefficients;
  static constexpr size_t kStates = 2;

  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    const auto [beta1, beta2] = options.betas();
    return lion_coefficients({.lr = options.lr(),
                              .beta1 = beta1,
                              .beta2 = beta2,
                              .weight_decay = options.weight_decay()},
                             gradient_scale);
  }

  template <typename T>
  static void apply(T* values, const T* gradient, std::span<void* const> states, int64_t numel,
                    const Coefficients& coefficients) {
    lion8bit_update(values, gradient, moment_in(states, 0), numel, coefficients);
  }
};

std::vector<StateField> moment_states(const std::vector<MomentNames>& moments) {
  std::vector<StateField> states;
  for (const MomentNames& names : moments) {
    states.push_back({.state = {.name = names.codes, .dtype = c10::kByte, .is_order_bound = true}});
    states.push_back(
        {.state = {.name = names.scales, .dtype = c10::kFloat, .block_numel = kCodeBlock}});
  }
  return states;
}

}  // namespace

const Algorithm& adamw8bit_algorithm() {
  static const Algorithm algorithm = {.name = "AdamW8bit",
                                      .options_name = "AdamW8bitOptions",
                                      .accepts = &has_type<AdamW8bitOptions>,
                                      .hyper_parameters = fields_with_betas<AdamW8bitOptions>(),
                                      .states = moment_states({kFirstMoment, kSecondMoment}),
                                      .make_update = &make_element_update<Adamw8bitUpdate>};
  return algorithm;
}

const Algorithm& lion8bit_algorithm() {
  static const Algorithm algorithm = {.name = "Lion8bit",
                                      .options_name = "Lion8bitOptions",
                                      .accepts = &has_type<Lion8bitOptions>,
                                      .hyper_parameters = fields_with_betas<Lion8bitOptions>(),
                                      .states = moment_states({kFirstMoment}),
                                      .make_update = &make_element_update<Lion8bitUpdate>};
  return algorithm;
}

}  // namespace tessera::internal
