#include "tessera/optim/algorithms/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/muon_options.h"
#include "tessera/optim/algorithm/element_loop.h"
#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/whole_update.h"
#include "tessera/optim/algorithms/newton_schulz.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

/// start + weight * (end - start), rounded as at::lerp rounds it.
template <typename T>
class MuonLerp {
 public:
  explicit MuonLerp(T weight)
      : from_start_(std::abs(weight) < T(0.5)), factor_(from_start_ ? weight : weight - T(1)) {}
  [[gnu::always_inline]] T operator()(T start, T end) const {
    return std::fma(factor_, end - start, from_start_ ? start : end);
  }

 private:
  bool from_start_;
  T factor_;
};

/// One parameter's numbers for one update.
struct MuonCoefficients {
  double gradient_scale;  // multiplies the gradient first
  double momentum;
  bool is_nesterov;
};

template <typename T>
[[gnu::always_inline]] inline void muon_direction_of(T* direction, const T* gradient, T* momentum,
                                                     int64_t numel, const MuonCoefficients& by) {
  const auto scale = static_cast<T>(by.gradient_scale);
  const MuonLerp<T> towards_gradient(static_cast<T>(1.0 - by.momentum));
  const MuonLerp<T> towards_momentum(static_cast<T>(by.momentum));
  const bool is_nesterov = by.is_nesterov;
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        const T g = gradient[i] * scale;
        const T m = towards_gradient(momentum[i], g);
        momentum[i] = m;
        direction[i] = is_nesterov ? towards_momentum(g, m) : m;
      });
}

TESSERA_FMA_TARGETS void muon_direction(float* direction, const float* gradient, float* momentum,
                                        int64_t numel, const MuonCoefficients& by) {
  muon_direction_of(direction, gradient, momentum, numel, by);
}
TESSERA_FMA_TARGETS void muon_direction(double* direction, const double* gradient, double* momentum,
                                        int64_t numel, const MuonCoefficients& by) {
  muon_direction_of(direction, gradient, momentum, numel, by);
}

/// Updates momentum_buffer and computes the direction. apply() writes it to its first array, in
/// which elementwise algorithms leave the new values.
struct MuonDirection {
  using Options = MuonOptions;
  using Coefficients = MuonCoefficients;
  static constexpr size_t kStates = 1;

  static Coefficients coefficients(const Options& options, int64_t /*step*/,
                                   double gradient_scale) {
    return {.gradient_scale = gradient_scale,
            .momentum = options.momentum(),
            .is_nesterov = options.nesterov()};
  }

  template <typename T>
  static void apply(T* direction, const T* gradient, const std::array<T*, kStates>& states,
                    int64_t numel, const Coefficients& coefficients) {
    muon_direction(direction, gradient, states[0], numel, coefficients);
  }
};

/// Replaces `values` by values * decay - rate * result.
template <typename T>
[[gnu::always_inline]] inline void muon_apply_of(T* values, const T* result, int64_t numel, T decay,
                                                 T rate) {
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        values[i] = std::fma(-rate, result[i], values[i] * decay);
      });
}

TESSERA_FMA_TARGETS void muon_apply(float* values, const float* result, int64_t numel, float decay,
                                    float rate) {
  muon_apply_of(values, result, numel, decay, rate);
}
TESSERA_FMA_TARGETS void muon_apply(double* values, const double* result, int64_t numel,
                                    double decay, double rate) {
  muon_apply_of(values, result, numel, decay, rate);
}

class MuonMatrix final : public WholeUpdate {
 public:
  Needs needs() const override { return Needs::kTransform; }
  int64_t cost(at::IntArrayRef sizes) const override {
    return sizes[0] * sizes[1] * std::min(sizes[0], sizes[1]);
  }
  int64_t scratch_numel(at::IntArrayRef sizes) const override {
    return NewtonSchulz::scratch_numel(sizes[0], sizes[1]);
  }
  void transform(const Options& options, const at::Tensor& direction,
                 const at::Tensor& scratch) const override {
    const MuonOptions& muon = own(options);
    const NewtonSchulz iteration{.coefficients = muon.ns_coefficients(),
                                 .steps = muon.ns_steps(),
                                 .eps = muon.eps(),
                                 .is_in_bfloat16 = muon.ns_in_bfloat16()};
    iteration.apply(direction, scratch);
  }
  void apply(const Options& options, const Whole& whole, float* values, const float* result,
             int64_t numel) const override {
    apply_to(own(options), whole.sizes, values, result, numel);
  }
  void apply(const Options& options, const Whole& whole, double* values, const double* result,
             int64_t numel) const override {
    apply_to(own(options), whole.sizes, values, result, numel);
  }

 private:
  static const MuonOptions& own(const Options& options) {
    return static_cast<const MuonOptions&>(options);
  }
  static double adjusted_rate(const MuonOptions& options, at::IntArrayRef sizes) {
    const auto rows = static_cast<double>(sizes[0]);
    const auto cols = static_cast<double>(sizes[1]);
    return options.lr() * (options.adjust_lr() == MuonOptions::AdjustLr::kOriginal
                               ? std::sqrt(std::max(1.0, rows / cols))
                               : 0.2 * std::sqrt(std::max(rows, cols)));
  }
  template <typename T>
  static void apply_to(const MuonOptions& options, at::IntArrayRef sizes, T* values,
                       const T* result, int64_t numel) {
    muon_apply(values, result, numel, static_cast<T>(1.0 - options.lr() * options.weight_decay()),
               static_cast<T>(adjusted_rate(options, sizes)));
  }
};

std::string eps_conflict(const OptimizerOptions& options) {
  return static_cast<const MuonOptions&>(options).eps() > 0.0
             ? ""
             : "eps: got 0, expected a number above 0, by which a matrix of zeros is divided";
}

std::vector<HyperParameterField> muon_fields() {
  using Field = HyperParameterField;
  using Options = MuonOptions;
  std::vector<Field> fields = {
      Field::number<Options>(
          "lr", [](auto& of) -> auto& { return of.lr(); }),
      Field::number<Options>(
          "weight_decay", [](auto& of) -> auto& { return of.weight_decay(); }),
      Field::number<Options>(
          "momentum", [](auto& of) -> auto& { return of.momentum(); }, /*end=*/1),
      Field::toggle<Options>(
          "nesterov", [](auto& of) -> auto& { return of.nesterov(); }),
      Field::number<Options>(
          "ns_steps", [](auto& of) -> auto& { return of.ns_steps(); }, /*end=*/100),
      Field::number<Options>(
          "eps", [](auto& of) -> auto& { return of.eps(); }),
      Field::toggle<Options>(
          "match_rms_adamw", [](auto& of) -> auto& { return of.adjust_lr(); }),
      Field::toggle<Options>(
          "ns_in_bfloat16", [](auto& of) -> auto& { return of.ns_in_bfloat16(); })};
  const auto add_coefficient = [&fields](Field field) {
    field.begin = -std::numeric_limits<double>::infinity();
    fields.push_back(std::move(field));
  };
  add_coefficient(Field::number<Options>(
      "ns_a", [](auto& of) -> auto& { return std::get<0>(of.ns_coefficients()); }));
  add_coefficient(Field::number<Options>(
      "ns_b", [](auto& of) -> auto& { return std::get<1>(of.ns_coefficients()); }));
  add_coefficient(Field::number<Options>(
      "ns_c", [](auto& of) -> auto& { return std::get<2>(of.ns_coefficients()); }));
  return fields;
}

}  // namespace

const Algorithm& muon_algorithm() {
  static const Algorithm algorithm = {
      .name = "Muon",
      .options_name = "MuonOptions",
      .accepts = &has_type<MuonOptions>,
      .hyper_parameters = muon_fields(),
      .states = {{{"momentum_buffer"}}},
      .conflict = &eps_conflict,
      .make_update = &make_element_update<MuonDirection>,
      .make_whole = []() -> std::unique_ptr<WholeUpdate> { return std::make_unique<MuonMatrix>(); },
      .dimensions = 2};
  return algorithm;
}

}  // namespace tessera::internal
