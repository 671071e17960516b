#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/algorithm_options.h"
#include "tessera/parameter_predicate.h"
#include "tessera/parameter_table.h"

namespace tessera {

namespace internal {
struct Algorithm;
}  // namespace internal

/// Options for the parameters that a predicate accepts, e.g. no weight decay on biases, or another
/// algorithm for them.
struct OptimizerGroup {
  std::string name;  ///< the group's name in messages, states, schedules and max_grad_norm_by_group
  /// Chooses the parameters of the group. The predicate gets the first name of each parameter.
  ParameterPredicate selects;
  AlgorithmOptions options;  ///< of any algorithm
};

/// The optimizer, and which options each parameter is trained with: those of the first group that
/// selects it, else the defaults. Converts from LibTorch's own options types, and from what
/// elementwise() and whole_tensor() return. The type of a group's options determines the algorithm
/// of its parameters, unless elementwise() or whole_tensor() made the options: then the algorithm
/// is the user's own optimizer. A parameter has only the states of its group's algorithm.
struct OptimizerPlan {
  template <OptimizerOptionsType Options>
  OptimizerPlan(Options defaults, std::vector<OptimizerGroup> groups = {})
      : defaults(std::move(defaults)), groups(std::move(groups)) {}

  OptimizerPlan(AlgorithmOptions defaults, std::vector<OptimizerGroup> groups = {})
      : defaults(std::move(defaults)), groups(std::move(groups)) {}

  AlgorithmOptions defaults;
  std::vector<OptimizerGroup> groups;

  /// Returns, for each parameter of `table`, the index of its group: 0 for the defaults, i + 1 for
  /// groups[i]. A frozen parameter gets a group, too: the one that it joins if it is trained later
  /// (Engine::set_trainable()). All parameters of a group may be frozen. An error lists every
  /// problem: an options type for which Tessera has no algorithm; options out of range (AdamW: lr <
  /// 0, betas outside [0, 1), eps < 0, weight_decay < 0); what the probe of a user's own optimizer
  /// found; parameters of other than two dimensions under Muon; a group that selects no parameter,
  /// a group without predicate.
  absl::StatusOr<std::vector<size_t>> assign(const ParameterTable& table) const;

  /// Returns the options of group `group`: 0 is the defaults, i + 1 is groups[i].
  const AlgorithmOptions& options(size_t group) const {
    return group == 0 ? defaults : groups[group - 1].options;
  }
  /// Returns the algorithm of group `group`. Throws c10::Error where assign() finds no algorithm.
  const internal::Algorithm& algorithm(size_t group = 0) const;

  /// Returns one line per group (name, all hyper-parameters) for comparison across ranks. Throws
  /// c10::Error where assign() finds no algorithm.
  std::vector<std::string> lines() const;
};

}  // namespace tessera
