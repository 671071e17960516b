#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/algorithm_options.h"
#include "tessera/parameter_table.h"

namespace tessera {

namespace internal {
struct Algorithm;
}  // namespace internal

/// Options for the parameters whose name a predicate accepts, e.g. no weight decay on biases.
struct OptimizerGroup {
  std::string name;  ///< for messages
  std::function<bool(std::string_view parameter)>
      selects;  ///< asked with the parameter's first name
  AlgorithmOptions options;
};

/// The optimizer, and which options each parameter is trained with: those of the first group that
/// selects it, else the defaults. Converts from LibTorch's own options types. The type of the
/// defaults determines the algorithm; groups must have the same type.
struct OptimizerPlan {
  template <OptimizerOptionsType Options>
  OptimizerPlan(Options defaults, std::vector<OptimizerGroup> groups = {})
      : defaults(std::move(defaults)), groups(std::move(groups)) {}

  AlgorithmOptions defaults;
  std::vector<OptimizerGroup> groups;

  /// For each trainable parameter of the table the index of its group: 0 the defaults, i + 1
  /// groups[i]. Frozen parameters get 0. An error lists every problem: an options type without an
  /// algorithm here, or another type than the defaults'; options out of range (AdamW: lr < 0,
  /// betas outside [0, 1), eps < 0, weight_decay < 0); a group that selects no trainable parameter,
  /// a group without predicate.
  absl::StatusOr<std::vector<size_t>> assign(const ParameterTable& table) const;

  /// What updates the parameters. Throws c10::Error where assign() finds no algorithm.
  const internal::Algorithm& algorithm() const;

  /// One line per group (name, all hyper-parameters) for comparison across ranks. Throws c10::Error
  /// where assign() finds no algorithm.
  std::vector<std::string> lines() const;
};

}  // namespace tessera
