#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// One number of a parameter group: lr, eps, ...
struct HyperParameter {
  std::string group;  ///< "defaults" or the OptimizerGroup's name; unique: " #<index>" is added to
                      ///< a name that an earlier group has, and to an empty one
  std::string name;   ///< "lr", "beta1", ...
  double value = 0;
};

/// What states call the groups of a plan, the defaults first: HyperParameter::group.
std::vector<std::string> unique_group_names(const std::vector<OptimizerGroup>& groups);

/// The parameter groups of an optimizer over flat buffers: what a user may edit in them, what they
/// hold now and whether that can be trained with, all by the algorithm's table of hyper-parameters.
/// The groups themselves are the torch::optim::Optimizer's that is given. Local.
class ParameterGroups {
 public:
  /// Adds the plan's groups to `owner`, which must outlive it and have none. `group_of` is
  /// OptimizerPlan::assign's answer. Throws c10::Error for one that is not, and with problem().
  ParameterGroups(torch::optim::Optimizer& owner, const Algorithm& algorithm,
                  const ParameterTable& table, const OptimizerPlan& plan,
                  const std::vector<size_t>& group_of);

  /// How many there are, the defaults first.
  size_t size() const { return group_names_.size(); }
  /// The group of parameter `parameter` of the table.
  size_t group_of(size_t parameter) const { return group_of_[parameter]; }
  /// What group `group` holds now, of the algorithm's type of options; problem() must be empty.
  const torch::optim::OptimizerOptions& options(size_t group) const { return *find(group); }

  /// Whether state number `state` of the algorithm's is kept: some group's options used it when
  /// this was made.
  bool keeps(size_t state) const { return keeps_[state]; }
  /// Those that are kept.
  const std::vector<ElementState>& states() const { return states_; }

  /// What is called in messages "defaults" or "group 'decay'".
  const std::string& name(size_t group) const { return group_names_[group]; }
  /// What states call it: HyperParameter::group.
  const std::string& state_name(size_t group) const { return state_groups_[group]; }

  /// The learning rate of group `group`; replaced_groups() must be empty.
  double rate(size_t group) const { return options(group).get_lr(); }
  void set_rate(size_t group, double rate) { owner_.param_groups()[group].options().set_lr(rate); }

  /// What makes the groups unusable now, "[optim] <what>: got X, expected Y; <remedy>"; empty if
  /// nothing. Asked before the vote, so that all ranks refuse together.
  std::string problem() const;
  /// problem() without the values' ranges: groups that are not what parallelize made.
  std::string replaced_groups() const;
  /// Throws c10::Error with problem(), if there is one.
  void require_usable() const;

  /// Bit patterns of all hyper-parameters in force now, for the vote: equal on all ranks or the
  /// step is refused.
  void append_hyper_parameters(std::vector<int64_t>& words) const;
  /// Names for the entries of append_hyper_parameters ("group 'decay': lr"), for messages.
  std::vector<std::string> hyper_parameter_names() const;

  /// The numbers of all groups in force now that a StateDict holds, in a fixed order. Where
  /// problem() says that groups or their options were replaced, their values are 0.
  std::vector<HyperParameter> hyper_parameters() const;
  /// What forbids set_hyper_parameters(values), one line each; empty if nothing. What the groups
  /// hold now may be out of range: loading mends it.
  std::vector<std::string> problems_of(std::span<const double> values) const;
  /// `values` in the order of hyper_parameters(), which problems_of() accepts.
  void set_hyper_parameters(std::span<const double> values);

 private:
  /// The options of group `group` as they are now; null where the user put another type there.
  const torch::optim::OptimizerOptions* find(size_t group) const;
  /// Calls visit(group, field, value) for what a StateDict holds, values[i] being the i-th.
  template <typename Visit>
  void for_each_saved(std::span<const double> values, const Visit& visit) const;

  /// What options use and is not kept; "" if nothing.
  std::string missing_state(size_t group) const;

  torch::optim::Optimizer& owner_;
  const Algorithm& algorithm_;
  std::vector<bool> keeps_;                                // per state of the algorithm
  std::vector<ElementState> states_;                       // those
  std::vector<std::string> group_names_;                   // for messages
  std::vector<std::string> state_groups_;                  // HyperParameter::group
  std::vector<std::vector<at::Tensor>> group_parameters_;  // as given, to notice edits
  std::vector<size_t> group_of_;
};

}  // namespace tessera::internal
