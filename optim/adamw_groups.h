#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/core/layout/parameter_table.h"
#include "tessera/optim/adamw_element.h"
#include "tessera/optim/flat_optimizer.h"
#include "tessera/optim/optimizer_plan.h"

namespace tessera {

/// The parameter groups of an AdamW over flat buffers: what a user may edit in them, what they hold
/// now and whether that can be trained with. The groups themselves are the
/// torch::optim::Optimizer's that is given. Local; FlatOptimizer says what the functions of the
/// same names do.
class AdamwGroups {
 public:
  /// Adds the plan's groups to `owner`, which must outlive it and have none. `group_of` is
  /// OptimizerPlan::assign's answer. Throws c10::Error for one that is not, and with problem().
  AdamwGroups(torch::optim::Optimizer& owner, const ParameterTable& table,
              const OptimizerPlan& plan, const std::vector<size_t>& group_of);

  /// How many there are, the defaults first.
  size_t size() const { return group_names_.size(); }
  /// The group of parameter `parameter` of the table.
  size_t group_of(size_t parameter) const { return group_of_[parameter]; }
  /// What group `group` holds now; problem() must be empty.
  AdamwHyperParameters hyper_parameters_of(size_t group) const;

  std::string problem() const;
  /// Throws c10::Error with problem(), if there is one.
  void require_usable() const;
  void append_hyper_parameters(std::vector<int64_t>& words) const;
  std::vector<std::string> hyper_parameter_names() const;
  std::vector<HyperParameter> hyper_parameters() const;
  std::vector<std::string> problems_of(std::span<const double> values) const;
  void set_hyper_parameters(std::span<const double> values);

 private:
  /// The options of group `group` as they are now; null where the user put another type there.
  const torch::optim::AdamWOptions* options(size_t group) const;
  /// problem() without the values' ranges: groups that are not what parallelize made.
  std::string replaced_groups() const;

  torch::optim::Optimizer& owner_;
  std::vector<std::string> group_names_;                   // for messages
  std::vector<std::string> state_groups_;                  // HyperParameter::group
  std::vector<std::vector<at::Tensor>> group_parameters_;  // as given, to notice edits
  std::vector<size_t> group_of_;
};

}  // namespace tessera
