#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/algorithm/algorithm.h"
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

/// Returns the names of a plan's groups in states, the defaults first: HyperParameter::group.
std::vector<std::string> unique_group_names(const std::vector<OptimizerGroup>& groups);

/// Lists trained parameters whose number of dimensions does not suit the algorithm of their group,
/// one line for each group; none if all is well. `group_of` is the result of
/// OptimizerPlan::assign(), which calls this, too.
std::vector<std::string> problems_of_dimensions(const OptimizerPlan& plan,
                                                const ParameterTable& table,
                                                const std::vector<size_t>& group_of);

/// Appends `group` to `plan`. It gets the parameters that it selects among those of the defaults (0
/// in `group_of`). Predicates of other groups are not called again, because tensors may have been
/// converted since then, and objects to which the predicates refer may be gone. Returns what is
/// wrong with the group, one line each.
std::vector<std::string> append_group(OptimizerPlan& plan, OptimizerGroup group,
                                      const ParameterTable& table, std::vector<size_t>& group_of);

/// Lists trained parameters whose states cannot be determined, a line each; none if all is well.
/// assign() calls this, too.
std::vector<std::string> problems_of_whole_states(const OptimizerPlan& plan,
                                                  const ParameterTable& table,
                                                  const std::vector<size_t>& group_of);

/// Returns a line for each trained parameter that has states kept whole by an owner, for comparison
/// across ranks.
std::vector<std::string> lines_of_whole_states(const OptimizerPlan& plan,
                                               const ParameterTable& table,
                                               const std::vector<size_t>& group_of);

/// The parameter groups of an optimizer over flat buffers. Reads, checks and sets the numbers that
/// users may edit, by the table of each group's algorithm. The groups themselves belong to the
/// given torch::optim::Optimizer. Local.
class ParameterGroups {
 public:
  /// Adds the plan's groups to `owner`, which must outlive this and have no groups. `group_of` is
  /// the result of OptimizerPlan::assign(). Throws c10::Error if it is not, and with problem() if
  /// there is one.
  ParameterGroups(torch::optim::Optimizer& owner, const ParameterTable& table,
                  const OptimizerPlan& plan, const std::vector<size_t>& group_of);

  /// Hands the groups to `owner`, which must outlive this: users see and edit them there from now
  /// on. `owner` may have the first groups already, from an engine of other parameters. Those
  /// groups keep their options and get the parameters.
  void show_in(torch::optim::Optimizer& owner);

  /// Returns the number of groups, with the defaults, which are the first.
  size_t size() const { return group_names_.size(); }
  /// Returns the group of parameter `parameter` of the table.
  size_t group_of(size_t parameter) const { return group_of_[parameter]; }
  /// Returns the algorithm of group `group`.
  const Algorithm& algorithm(size_t group) const { return *algorithms_[group]; }
  /// Returns the present options of group `group`, of its algorithm's type; problem() must be
  /// empty.
  const torch::optim::OptimizerOptions& options(size_t group) const { return *find(group); }

  /// Returns the states that some group's options used when this was made, each with the parameters
  /// of those groups. States of several algorithms with equal name, dtype and block count as one
  /// state.
  const std::vector<KeptState>& states() const { return states_; }
  /// kept_state() returns the index in states() of state number `state` of the algorithm of group
  /// `group`; kNoState if the group does not have that state.
  static constexpr size_t kNoState = static_cast<size_t>(-1);
  size_t kept_state(size_t group, size_t state) const { return kept_states_[group][state]; }

  /// Returns the name of group `group` in messages: "defaults" or "group 'decay'".
  const std::string& name(size_t group) const { return group_names_[group]; }
  /// Returns the name of group `group` in states: HyperParameter::group.
  const std::string& state_name(size_t group) const { return state_groups_[group]; }

  /// Returns the learning rate of group `group`; replaced_groups() must be empty.
  double rate(size_t group) const { return options(group).get_lr(); }
  void set_rate(size_t group, double rate) { owner_->param_groups()[group].options().set_lr(rate); }

  /// Returns what makes the groups unusable now, "[optim] <what>: got X, expected Y; <remedy>";
  /// empty if nothing. Called before the vote, so that all ranks refuse together.
  std::string problem() const;
  /// Like problem(), but does not check the ranges of values: reports groups that are not those
  /// that parallelize() made.
  std::string replaced_groups() const;
  /// Throws c10::Error with problem(), if there is one.
  void require_usable() const;

  /// Appends the bit patterns of all hyper-parameters in force now to `words`, for the vote, which
  /// refuses the step if they differ between ranks.
  void append_hyper_parameters(std::vector<int64_t>& words) const;
  /// Returns names for the entries of append_hyper_parameters ("group 'decay': lr"), for messages.
  std::vector<std::string> hyper_parameter_names() const;

  /// Returns the numbers of all groups in force now that a StateDict holds, in a fixed order. Where
  /// problem() says that groups or their options were replaced, their values are 0.
  std::vector<HyperParameter> hyper_parameters() const;
  /// Returns what forbids set_hyper_parameters(values), one line each; empty if nothing. Present
  /// values may be out of range: loading replaces them.
  std::vector<std::string> problems_of(std::span<const double> values) const;
  /// Sets `values`, in the order of hyper_parameters(). problems_of() must accept them.
  void set_hyper_parameters(std::span<const double> values);

 private:
  /// Returns the options of group `group` as they are now; null where the user put another type
  /// there.
  const torch::optim::OptimizerOptions* find(size_t group) const;
  /// Calls visit(group, field, value) for each number that a StateDict holds; values[i] is the i-th
  /// number.
  template <typename Visit>
  void for_each_saved(std::span<const double> values, const Visit& visit) const;

  void keep_states(size_t parameters);
  /// Return an error about a state that the group's options use but that is not kept; "" if there
  /// is none.
  std::string missing_state(size_t group) const;
  std::string missing_whole_state(size_t group) const;

  torch::optim::Optimizer* owner_;            // has the groups
  std::vector<AlgorithmOptions> given_;       // per group, as given; keeps a user's algorithm alive
  std::vector<const Algorithm*> algorithms_;  // per group
  std::vector<std::vector<size_t>> kept_states_;  // per group, per state of its algorithm
  std::vector<KeptState> states_;
  std::vector<std::vector<std::vector<WholeState>>> whole_states_;  // per group and its parameters
  std::vector<std::string> group_names_;                            // for messages
  std::vector<std::string> state_groups_;                           // HyperParameter::group
  std::vector<std::vector<at::Tensor>> group_parameters_;           // as given, to notice edits
  std::vector<size_t> group_of_;
};

}  // namespace tessera::internal
