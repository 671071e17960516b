#include "tessera/optim/plan/parameter_groups.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

std::vector<std::vector<at::Tensor>> parameters_by_group(const ParameterTable& table,
                                                         const std::vector<size_t>& group_of,
                                                         size_t groups) {
  TORCH_CHECK(group_of.size() == table.size(), "[optim] group_of: got ", group_of.size(),
              " entries, expected ", table.size(), "; pass what OptimizerPlan::assign returned");
  std::vector<std::vector<at::Tensor>> parameters(groups);
  for (size_t index = 0; index < table.size(); ++index) {
    TORCH_CHECK(group_of[index] < groups, "[optim] group_of: got group ", group_of[index],
                " for parameter '", table[index].name, "', expected less than ", groups,
                "; pass what OptimizerPlan::assign returned");
    if (table[index].is_trainable) parameters[group_of[index]].push_back(table[index].tensor);
  }
  return parameters;
}

/// Adds a group to `owner`, and sets its options only afterwards. If options came with the group,
/// LibTorch 2.15 would merge them with the optimizer's defaults: it would overwrite each number
/// that still has the default of the options' type, and all numbers if the group's options are of
/// another type.
void add_group(torch::optim::Optimizer& owner, const std::vector<at::Tensor>& parameters,
               std::unique_ptr<torch::optim::OptimizerOptions> options) {
  owner.add_param_group(torch::optim::OptimizerParamGroup(parameters));
  owner.param_groups().back().set_options(std::move(options));
}

}  // namespace

/// The names must differ, because the entries of a state are found by them.
std::vector<std::string> unique_group_names(const std::vector<OptimizerGroup>& groups) {
  std::vector<std::string> names = {"defaults"};
  for (const OptimizerGroup& group : groups) {
    const auto is_taken = [&names](const std::string& name) {
      return name.empty() || std::find(names.begin(), names.end(), name) != names.end();
    };
    std::string name = group.name;
    while (is_taken(name)) name += absl::StrCat(" #", names.size());
    names.push_back(std::move(name));
  }
  return names;
}

ParameterGroups::ParameterGroups(torch::optim::Optimizer& owner, const ParameterTable& table,
                                 const OptimizerPlan& plan, const std::vector<size_t>& group_of)
    : owner_(&owner),
      state_groups_(unique_group_names(plan.groups)),
      group_parameters_(parameters_by_group(table, group_of, plan.groups.size() + 1)),
      group_of_(group_of) {
  for (size_t group = 0; group < group_parameters_.size(); ++group) {
    given_.push_back(plan.options(group));
    algorithms_.push_back(&plan.algorithm(group));
    group_names_.push_back(group == 0 ? "defaults" : "group '" + plan.groups[group - 1].name + "'");
    add_group(*owner_, group_parameters_[group], plan.options(group).clone());
  }
  keep_states(table.size());
  require_usable();
}

void ParameterGroups::show_in(torch::optim::Optimizer& owner) {
  std::vector<torch::optim::OptimizerParamGroup> groups = std::exchange(owner_->param_groups(), {});
  for (size_t group = 0; group < groups.size(); ++group) {
    if (group < owner.param_groups().size()) {
      owner.param_groups()[group].params() = std::move(groups[group].params());
    } else {
      add_group(owner, groups[group].params(), groups[group].options().clone());
    }
  }
  owner_ = &owner;
}

void ParameterGroups::keep_states(size_t parameters) {
  for (size_t group = 0; group < size(); ++group) {
    std::vector<std::vector<WholeState>>& wholes = whole_states_.emplace_back();
    for (const at::Tensor& parameter : group_parameters_[group]) {
      if (algorithm(group).whole_states == nullptr) break;
      wholes.push_back(algorithm(group).whole_states(options(group), parameter.sizes()));
    }
    std::vector<size_t>& kept = kept_states_.emplace_back();
    for (const StateField& field : algorithm(group).states) {
      kept.push_back(kNoState);
      if (group_parameters_[group].empty() || !field.is_used_by(options(group))) continue;
      const auto same = std::find_if(states_.begin(), states_.end(), [&](const KeptState& state) {
        return state.name == field.state.name && state.dtype == field.state.dtype &&
               state.block_numel == field.state.block_numel;
      });
      kept.back() = static_cast<size_t>(same - states_.begin());
      if (same == states_.end()) {
        states_.push_back({field.state, std::vector<uint8_t>(parameters, 0)});
      }
      for (size_t i = 0; i < parameters; ++i) {
        if (group_of_[i] == group) states_[kept.back()].parameters[i] = 1;
      }
    }
  }
}

const OptimizerOptions* ParameterGroups::find(size_t group) const {
  const auto& groups = owner_->param_groups();
  if (group >= groups.size() || !groups[group].has_options()) return nullptr;
  const OptimizerOptions& options = groups[group].options();
  return algorithm(group).accepts(options) ? &options : nullptr;
}

std::string ParameterGroups::replaced_groups() const {
  if (owner_->param_groups().size() != group_parameters_.size()) {
    return absl::StrCat("[optim] parameter groups: got ", owner_->param_groups().size(),
                        ", expected ", group_parameters_.size(),
                        "; groups are fixed by the OptimizerPlan given to parallelize, and "
                        "engine->add_group() adds one");
  }
  for (size_t group = 0; group < owner_->param_groups().size(); ++group) {
    const std::vector<at::Tensor>& present = owner_->param_groups()[group].params();
    const std::vector<at::Tensor>& given = group_parameters_[group];
    if (!std::equal(present.begin(), present.end(), given.begin(), given.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); })) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got a foreign list of parameters, expected the one given to "
                          "parallelize; choose parameters by an OptimizerPlan");
    }
    if (find(group) == nullptr) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got options of another type, expected ", algorithm(group).options_name,
                          "; change the values of the options that are there");
    }
  }
  return "";
}

std::string ParameterGroups::missing_state(size_t group) const {
  if (group_parameters_[group].empty()) return "";
  for (size_t i = 0; i < kept_states_[group].size(); ++i) {
    const StateField& field = algorithm(group).states[i];
    if (kept_state(group, i) != kNoState || !field.is_used_by(options(group))) continue;
    return absl::StrCat("[optim] ", group_names_[group], ": got options that need the state '",
                        field.state.name, "', expected ones that do not, as when the engine was ",
                        "made; give them to parallelize");
  }
  return "";
}

std::string ParameterGroups::missing_whole_state(size_t group) const {
  try {
    for (size_t i = 0; i < whole_states_[group].size(); ++i) {
      const std::vector<WholeState>& kept = whole_states_[group][i];
      const at::IntArrayRef sizes = group_parameters_[group][i].sizes();
      for (const WholeState& wanted : algorithm(group).whole_states(options(group), sizes)) {
        if (std::find(kept.begin(), kept.end(), wanted) != kept.end()) continue;
        return absl::StrCat("[optim] ", group_names_[group], ": got options that need the state '",
                            wanted.name, "' with sizes ", c10::str(at::IntArrayRef(wanted.sizes)),
                            " of a parameter with ", c10::str(sizes),
                            ", expected ones that do not, as when the engine was made; give them "
                            "to parallelize");
      }
    }
  } catch (...) {
    return absl::StrCat("[optim] ", group_names_[group], ": ", present_error_text());
  }
  return "";
}

std::string ParameterGroups::problem() const {
  std::string replaced = replaced_groups();
  if (!replaced.empty()) return replaced;
  for (size_t group = 0; group < size(); ++group) {
    const auto problems = algorithm(group).problems_of(group_names_[group], options(group));
    if (!problems.empty()) return problems.front();
    std::string missing = missing_state(group);
    if (missing.empty()) missing = missing_whole_state(group);
    if (!missing.empty()) return missing;
  }
  return "";
}

void ParameterGroups::require_usable() const {
  const std::string unusable = problem();
  TORCH_CHECK(unusable.empty(), unusable);
}

// Never throws, and always appends the same number of words, because a rank whose groups are broken
// must reach the vote. There the ranks refuse the step with the text of problem().
void ParameterGroups::append_hyper_parameters(std::vector<int64_t>& words) const {
  words.push_back(static_cast<int64_t>(owner_->param_groups().size()));
  for (size_t group = 0; group < size(); ++group) {
    const OptimizerOptions* now = find(group);
    for (const HyperParameterField& field : algorithm(group).hyper_parameters) {
      words.push_back(field.word(now != nullptr ? field.read(*now) : 0.0));
    }
  }
}

std::vector<std::string> ParameterGroups::hyper_parameter_names() const {
  std::vector<std::string> names = {"number of parameter groups"};
  for (size_t group = 0; group < size(); ++group) {
    for (const HyperParameterField& field : algorithm(group).hyper_parameters) {
      names.push_back(name(group) + ": " + field.name);
    }
  }
  return names;
}

std::vector<HyperParameter> ParameterGroups::hyper_parameters() const {
  std::vector<HyperParameter> all;
  for (size_t group = 0; group < size(); ++group) {
    const OptimizerOptions* now = find(group);
    for (const HyperParameterField& field : algorithm(group).hyper_parameters) {
      if (!field.is_saved()) continue;
      all.push_back({state_groups_[group], field.name, now != nullptr ? field.read(*now) : 0.0});
    }
  }
  return all;
}

template <typename Visit>
void ParameterGroups::for_each_saved(std::span<const double> values, const Visit& visit) const {
  size_t next = 0;
  for (size_t group = 0; group < size(); ++group) {
    for (const HyperParameterField& field : algorithm(group).hyper_parameters) {
      if (!field.is_saved()) continue;
      TORCH_INTERNAL_ASSERT(next < values.size());
      visit(group, field, values[next++]);
    }
  }
  TORCH_INTERNAL_ASSERT(next == values.size());
}

std::vector<std::string> ParameterGroups::problems_of(std::span<const double> values) const {
  std::vector<std::string> problems;
  if (std::string replaced = replaced_groups(); !replaced.empty()) {
    problems.push_back(std::move(replaced));
  }
  for_each_saved(values, [&](size_t group, const HyperParameterField& field, double value) {
    const std::string problem = field.problem(value);
    if (problem.empty()) return;
    problems.push_back(absl::StrCat("[optim] ", group_names_[group], ": ", problem));
  });
  return problems;
}

void ParameterGroups::set_hyper_parameters(std::span<const double> values) {
  const std::vector<std::string> problems = problems_of(values);
  TORCH_CHECK(problems.empty(), problems.front());
  for_each_saved(values, [&](size_t group, const HyperParameterField& field, double value) {
    field.write(owner_->param_groups()[group].options(), value);
  });
}

}  // namespace tessera::internal
