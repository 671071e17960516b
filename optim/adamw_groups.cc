#include "tessera/optim/adamw_groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/optim/adamw_options.h"

namespace tessera {

namespace {

using torch::optim::AdamWOptions;

using AdamwValues = std::array<double, kAdamwNames.size()>;

AdamwValues values_of_group(std::span<const double> values, size_t group) {
  AdamwValues own;
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(group * own.size()), own.size(),
              own.begin());
  return own;
}

/// Entries of a state are found by these names, so no two groups may share one.
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

}  // namespace

AdamwGroups::AdamwGroups(torch::optim::Optimizer& owner, const ParameterTable& table,
                         const OptimizerPlan& plan, const std::vector<size_t>& group_of)
    : owner_(owner),
      state_groups_(unique_group_names(plan.groups)),
      group_parameters_(parameters_by_group(table, group_of, plan.groups.size() + 1)),
      group_of_(group_of) {
  for (size_t group = 0; group < group_parameters_.size(); ++group) {
    group_names_.push_back(group == 0 ? "defaults" : "group '" + plan.groups[group - 1].name + "'");
    const AdamWOptions& options = group == 0 ? plan.defaults : plan.groups[group - 1].options;
    owner_.add_param_group({group_parameters_[group], std::make_unique<AdamWOptions>(options)});
  }
  require_usable();
}

const AdamWOptions* AdamwGroups::options(size_t group) const {
  const auto& groups = owner_.param_groups();
  if (group >= groups.size() || !groups[group].has_options()) return nullptr;
  return dynamic_cast<const AdamWOptions*>(&std::as_const(groups[group]).options());
}

std::string AdamwGroups::replaced_groups() const {
  if (owner_.param_groups().size() != group_parameters_.size()) {
    return absl::StrCat("[optim] parameter groups: got ", owner_.param_groups().size(),
                        ", expected ", group_parameters_.size(),
                        "; groups are fixed by the OptimizerPlan given to parallelize");
  }
  for (size_t group = 0; group < owner_.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& present = owner_.param_groups()[group].params();
    const std::vector<at::Tensor>& given = group_parameters_[group];
    if (!std::equal(present.begin(), present.end(), given.begin(), given.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); })) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got a foreign list of parameters, expected the one given to "
                          "parallelize; choose parameters by an OptimizerPlan");
    }
    if (options(group) == nullptr) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got options of another type, expected AdamWOptions; change the values "
                          "of the options that are there");
    }
  }
  return "";
}

std::string AdamwGroups::problem() const {
  std::string replaced = replaced_groups();
  if (!replaced.empty()) return replaced;
  for (size_t group = 0; group < size(); ++group) {
    const auto problems = adamw_problems(group_names_[group], *options(group));
    if (!problems.empty()) return problems.front();
  }
  return "";
}

void AdamwGroups::require_usable() const {
  const std::string unusable = problem();
  TORCH_CHECK(unusable.empty(), unusable);
}

AdamwHyperParameters AdamwGroups::hyper_parameters_of(size_t group) const {
  const AdamWOptions& now = *options(group);
  const auto [beta1, beta2] = now.betas();
  return {.lr = now.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = now.eps(),
          .weight_decay = now.weight_decay()};
}

// Never throws and always appends the same number of words: a rank whose groups are broken must
// reach the vote, which refuses what problem() says.
void AdamwGroups::append_hyper_parameters(std::vector<int64_t>& words) const {
  words.push_back(static_cast<int64_t>(owner_.param_groups().size()));
  for (size_t group = 0; group < group_names_.size(); ++group) {
    const AdamWOptions* now = options(group);
    for (double value : now != nullptr ? adamw_values(*now) : AdamwValues{}) {
      words.push_back(std::bit_cast<int64_t>(value));
    }
    words.push_back(now != nullptr && now->amsgrad() ? 1 : 0);
  }
}

std::vector<std::string> AdamwGroups::hyper_parameter_names() const {
  std::vector<std::string> names = {"number of parameter groups"};
  for (const std::string& group : group_names_) {
    for (const char* name : kAdamwNames) names.push_back(group + ": " + name);
    names.push_back(group + ": amsgrad");
  }
  return names;
}

std::vector<HyperParameter> AdamwGroups::hyper_parameters() const {
  std::vector<HyperParameter> all;
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    const AdamWOptions* now = options(group);
    const AdamwValues values = now != nullptr ? adamw_values(*now) : AdamwValues{};
    for (size_t i = 0; i < values.size(); ++i) {
      all.push_back({state_groups_[group], kAdamwNames[i], values[i]});
    }
  }
  return all;
}

std::vector<std::string> AdamwGroups::problems_of(std::span<const double> values) const {
  TORCH_INTERNAL_ASSERT(values.size() == state_groups_.size() * kAdamwNames.size());
  std::vector<std::string> problems;
  if (std::string replaced = replaced_groups(); !replaced.empty()) {
    problems.push_back(std::move(replaced));
  }
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    AdamWOptions loaded;
    set_adamw_values(loaded, values_of_group(values, group));
    for (std::string& problem : adamw_problems(group_names_[group], loaded)) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

void AdamwGroups::set_hyper_parameters(std::span<const double> values) {
  const std::vector<std::string> problems = problems_of(values);
  TORCH_CHECK(problems.empty(), problems.front());
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    set_adamw_values(static_cast<AdamWOptions&>(owner_.param_groups()[group].options()),
                     values_of_group(values, group));
  }
}

}  // namespace tessera
