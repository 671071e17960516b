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
                      ///< a name that an earlier group has, and to an empty name
  std::string name;   ///< "lr", "beta1", ...
  double value = 0;
};

/// Returns the names that a plan's groups have in a StateDict (HyperParameter::group). The first is
/// the name of the defaults.
std::vector<std::string> unique_group_names(const std::vector<OptimizerGroup>& groups);

/// Returns one line for each group that has trained parameters with a number of dimensions that
/// does not suit its algorithm; the line lists these parameters. Returns no lines if all is well.
/// `group_of` is the result of OptimizerPlan::assign(), which calls this, too.
std::vector<std::string> problems_of_dimensions(const OptimizerPlan& plan,
                                                const ParameterTable& table,
                                                const std::vector<size_t>& group_of);

/// Appends `group` to `plan`. The group gets the parameters that it selects among those of the
/// defaults (0 in `group_of`). Predicates of other groups are not called again, because tensors may
/// have been converted since parallelize(), and objects to which the predicates refer may be gone.
/// Returns what is wrong with the group, one line each.
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
/// users may edit, as Algorithm::hyper_parameters of each group describes them. The groups
/// themselves belong to the given torch::optim::Optimizer. Local.
class ParameterGroups {
 public:
  /// Adds the plan's groups to `owner`, which must outlive this and have no groups. `group_of` must
  /// be the result of OptimizerPlan::assign(). Throws c10::Error if `group_of` does not fit the
  /// table and the plan, or if there is a problem().
  ParameterGroups(torch::optim::Optimizer& owner, const ParameterTable& table,
                  const OptimizerPlan& plan, const std::vector<size_t>& group_of);

  /// Hands the groups to `owner`, which must outlive this: users see and edit them there from now
  /// on. If `owner` has groups of an earlier engine, these must correspond, in order, to this
  /// object's first groups. They keep the options that they have in `owner`, and get the parameters
  /// of this object's groups.
  void show_in(torch::optim::Optimizer& owner);

  /// Returns the number of groups, including the defaults, which are group 0.
  size_t size() const { return group_names_.size(); }
  /// Returns the group of parameter `parameter` of the table.
  size_t group_of(size_t parameter) const { return group_of_[parameter]; }
  /// Returns the algorithm of group `group`.
  const Algorithm& algorithm(size_t group) const { return *algorithms_[group]; }
  /// Returns the present options of group `group`. They have the options type of the group's
  /// algorithm. Call it only if problem() is empty.
  const torch::optim::OptimizerOptions& options(size_t group) const { return *find(group); }

  /// Returns every state that the options of at least one group used when this object was made,
  /// with the parameters of the groups that used it. If states of several algorithms have the same
  /// name, dtype and number of elements per block, they count as one state.
  const std::vector<KeptState>& states() const { return states_; }
  /// `state` is the number of a state within the algorithm of group `group`. kept_state() returns
  /// that state's index in states(), or kNoState if the group does not have it.
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
  /// Returns the part of problem() about what the user has replaced since the groups were made: the
  /// number of groups, a group's list of parameters, or the type of its options. Unlike problem(),
  /// it does not check the ranges of values.
  std::string replaced_groups() const;
  /// Throws c10::Error with problem(), if there is one.
  void require_usable() const;

  /// Appends the number of groups and the bit patterns of all present hyper-parameters to `words`,
  /// for the vote, which refuses the step if they differ between ranks.
  void append_hyper_parameters(std::vector<int64_t>& words) const;
  /// Returns names for the entries of append_hyper_parameters ("group 'decay': lr"), for messages.
  std::vector<std::string> hyper_parameter_names() const;

  /// Returns the present values of all numbers that a StateDict holds, group by group in a fixed
  /// order. The values of a group are 0 if the user has removed it or has given it options of
  /// another type; problem() then says so.
  std::vector<HyperParameter> hyper_parameters() const;
  /// Returns what forbids set_hyper_parameters(values), one line each; empty if nothing. Does not
  /// check the ranges of the present values, because loading replaces them.
  std::vector<std::string> problems_of(std::span<const double> values) const;
  /// Sets `values`, in the order of hyper_parameters(). problems_of() must accept them.
  void set_hyper_parameters(std::span<const double> values);

 private:
  /// Returns the present options of group `group`; null if the user has replaced them by options of
  /// another type or has removed the group.
  const torch::optim::OptimizerOptions* find(size_t group) const;
  /// Calls visit(group, field, values[i]) for every i, with the group and the field of the i-th
  /// number that a StateDict holds.
  template <typename Visit>
  void for_each_saved(std::span<const double> values, const Visit& visit) const;

  void keep_states(size_t parameters);
  /// Each returns an error if the group's present options need a state that the optimizer does not
  /// keep; else "". missing_whole_state() checks the states that owners keep whole, missing_state()
  /// the others.
  std::string missing_state(size_t group) const;
  std::string missing_whole_state(size_t group) const;

  torch::optim::Optimizer* owner_;            // has the groups
  std::vector<AlgorithmOptions> given_;       // per group, as given; keeps a user's algorithm alive
  std::vector<const Algorithm*> algorithms_;  // per group
  // [group][state of its algorithm]: what kept_state() returns.
  std::vector<std::vector<size_t>> kept_states_;
  std::vector<KeptState> states_;
  std::vector<std::vector<std::vector<WholeState>>> whole_states_;  // [group][its i-th parameter]
  std::vector<std::string> group_names_;                            // for messages
  std::vector<std::string> state_groups_;                           // HyperParameter::group
  std::vector<std::vector<at::Tensor>> group_parameters_;           // as given, to notice edits
  std::vector<size_t> group_of_;
};

}  // namespace tessera::internal
