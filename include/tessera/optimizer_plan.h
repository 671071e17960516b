#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include "tessera/algorithm_options.h"
#include "tessera/parameter_table.h"

namespace tessera {

namespace internal {
struct Algorithm;
}  // namespace internal

/// Chooses parameters by name, or by name and tensor: a callable that takes
/// `(std::string_view name)` or `(std::string_view name, const at::Tensor& parameter)` and returns
/// bool. The tensor is the model's own as it was given to parallelize: its sizes and dtype may
/// decide, its values must not, for they may differ between ranks.
class ParameterPredicate {
 public:
  /// None; OptimizerPlan::assign() refuses it.
  ParameterPredicate() = default;
  ParameterPredicate(std::nullptr_t) {}
  template <typename Callable>
  requires(!std::same_as<std::decay_t<Callable>, ParameterPredicate> &&
           std::predicate<Callable&, std::string_view, const at::Tensor&>)
      ParameterPredicate(Callable callable)
      : accepts_(std::move(callable)) {}
  template <typename Callable>
  requires(!std::same_as<std::decay_t<Callable>, ParameterPredicate> &&
           std::predicate<Callable&, std::string_view> &&
           !std::predicate<Callable&, std::string_view, const at::Tensor&>)
      ParameterPredicate(Callable callable) {
    std::function<bool(std::string_view)> by_name(std::move(callable));
    if (by_name == nullptr) return;
    accepts_ = [by_name = std::move(by_name)](std::string_view name, const at::Tensor&) {
      return by_name(name);
    };
  }

  explicit operator bool() const { return static_cast<bool>(accepts_); }
  bool operator()(std::string_view name, const at::Tensor& parameter) const {
    return accepts_(name, parameter);
  }

 private:
  std::function<bool(std::string_view name, const at::Tensor& parameter)> accepts_;
};

/// Options for the parameters that a predicate accepts, e.g. no weight decay on biases, or another
/// algorithm for them.
struct OptimizerGroup {
  std::string name;            ///< in messages, states, schedules and max_grad_norm_by_group
  ParameterPredicate selects;  ///< asked with the parameter's first name
  AlgorithmOptions options;    ///< of any algorithm
};

/// The optimizer, and which options each parameter is trained with: those of the first group that
/// selects it, else the defaults. Converts from LibTorch's own options types, and from what
/// elementwise() returns (elementwise.h). The type of a group's options determines the algorithm of
/// its parameters, unless elementwise() has; they have the states of that algorithm only.
struct OptimizerPlan {
  template <OptimizerOptionsType Options>
  OptimizerPlan(Options defaults, std::vector<OptimizerGroup> groups = {})
      : defaults(std::move(defaults)), groups(std::move(groups)) {}

  OptimizerPlan(AlgorithmOptions defaults, std::vector<OptimizerGroup> groups = {})
      : defaults(std::move(defaults)), groups(std::move(groups)) {}

  AlgorithmOptions defaults;
  std::vector<OptimizerGroup> groups;

  /// For each trainable parameter of the table the index of its group: 0 the defaults, i + 1
  /// groups[i]. Frozen parameters get 0. An error lists every problem: an options type without an
  /// algorithm here; options out of range (AdamW: lr < 0, betas outside [0, 1), eps < 0,
  /// weight_decay < 0); what the probe of elementwise() found; parameters of other than two
  /// dimensions under Muon; a group that selects no trainable parameter, a group without predicate.
  absl::StatusOr<std::vector<size_t>> assign(const ParameterTable& table) const;

  /// The options of group `group` as assign() counts them.
  const AlgorithmOptions& options(size_t group) const {
    return group == 0 ? defaults : groups[group - 1].options;
  }
  /// What updates the parameters of group `group`. Throws c10::Error where assign() finds no
  /// algorithm.
  const internal::Algorithm& algorithm(size_t group = 0) const;

  /// One line per group (name, all hyper-parameters) for comparison across ranks. Throws c10::Error
  /// where assign() finds no algorithm.
  std::vector<std::string> lines() const;
};

}  // namespace tessera
