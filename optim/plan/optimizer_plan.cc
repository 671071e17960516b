#include "tessera/optimizer_plan.h"

#include <typeinfo>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "tessera/core/options/problems.h"
#include "tessera/core/process/error_text.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/optim/plan/parameter_groups.h"

namespace tessera {
using namespace internal;

namespace {

std::string type_of(const AlgorithmOptions& options) {
  if (options.get() == nullptr) return "no options";
  const torch::optim::OptimizerOptions& own = *options.get();
  return c10::demangle(typeid(own).name());
}

/// Returns the algorithm for `options`; null if there is none.
const Algorithm* find_algorithm(const AlgorithmOptions& options) {
  if (options.get() == nullptr) return nullptr;
  return options.algorithm() != nullptr ? options.algorithm() : algorithm_of(*options.get());
}

std::string subject_of(const OptimizerPlan& plan, size_t group) {
  return group == 0 ? "defaults" : "group '" + plan.groups[group - 1].name + "'";
}

bool selects(const OptimizerGroup& group, const Parameter& parameter) {
  return ask(group.selects, "[optim] group '" + group.name + "': its predicate", parameter.name,
             parameter.tensor);
}

std::string unknown_algorithm(const OptimizerPlan& plan, size_t group) {
  return "[optim] " + subject_of(plan, group) + ": got " + type_of(plan.options(group)) +
         ", expected " + known_options() +
         "; choose one of these, or hand an optimizer of your own to tessera::elementwise or "
         "tessera::whole_tensor";
}

/// Returns what is wrong with the options of one group of the plan, one line each.
std::vector<std::string> problems_of_options(const OptimizerPlan& plan, size_t group) {
  const Algorithm* algorithm = find_algorithm(plan.options(group));
  if (algorithm == nullptr) return {unknown_algorithm(plan, group)};
  const torch::optim::OptimizerOptions& options = *plan.options(group).get();
  std::vector<std::string> problems = algorithm->problems_of(subject_of(plan, group), options);
  if (problems.empty() && algorithm->probe) {
    if (std::string found = algorithm->probe(options); !found.empty()) {
      problems.push_back("[optim] " + subject_of(plan, group) + ": " + found);
    }
  }
  return problems;
}

std::string no_predicate(const OptimizerGroup& group) {
  return "[optim] group '" + group.name + "': got no predicate, expected one; set selects";
}

std::string no_parameter(const OptimizerGroup& group) {
  return "[optim] group '" + group.name +
         "': got no parameter, expected at least one, trained or frozen; correct its predicate or "
         "remove it";
}

}  // namespace

std::vector<std::string> internal::problems_of_dimensions(const OptimizerPlan& plan,
                                                          const ParameterTable& table,
                                                          const std::vector<size_t>& group_of) {
  std::vector<std::string> problems;
  for (size_t group = 0; group <= plan.groups.size(); ++group) {
    const Algorithm* algorithm = find_algorithm(plan.options(group));
    if (algorithm == nullptr || algorithm->dimensions == 0) continue;
    const Parameter* first = nullptr;
    size_t count = 0;
    for (size_t i = 0; i < table.size(); ++i) {
      if (group_of[i] != group || !table[i].is_trainable) continue;
      if (table[i].tensor.dim() == algorithm->dimensions) continue;
      if (count++ == 0) first = &table[i];
    }
    if (first == nullptr) continue;
    const std::string wanted = "dim() == " + std::to_string(algorithm->dimensions);
    problems.push_back(absl::StrCat(
        "[optim] ", subject_of(plan, group), ": got parameter '", first->name, "' with dim() == ",
        first->tensor.dim(), count == 1 ? "" : absl::StrCat(" and ", count - 1, " more"),
        ", expected ", wanted, ", which ", algorithm->name,
        " needs; give such parameters a group with a predicate on parameter.", wanted,
        ", and the others another algorithm"));
  }
  return problems;
}

std::vector<std::string> internal::append_group(OptimizerPlan& plan, OptimizerGroup group,
                                                const ParameterTable& table,
                                                std::vector<size_t>& group_of) {
  plan.groups.push_back(std::move(group));
  const OptimizerGroup& added = plan.groups.back();
  const size_t number = plan.groups.size();
  std::vector<std::string> problems = problems_of_options(plan, number);
  if (!added.selects) {
    problems.push_back(no_predicate(added));
    return problems;
  }
  bool has_any = false;
  const Parameter* of_another = nullptr;
  size_t its_group = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!selects(added, table[i])) continue;
    if (group_of[i] == 0) {
      group_of[i] = number;
      has_any = true;
    } else if (of_another == nullptr) {
      of_another = &table[i];
      its_group = group_of[i];
    }
  }
  if (!has_any && of_another == nullptr) problems.push_back(no_parameter(added));
  if (!has_any && of_another != nullptr) {
    problems.push_back("[optim] group '" + added.name + "': got '" + of_another->name +
                       "' and no parameter that is not in another group, as that is in " +
                       subject_of(plan, its_group) +
                       ", expected at least one of the defaults'; change that group's options");
  }
  append(problems, problems_of_dimensions(plan, table, group_of));
  return problems;
}

std::vector<std::string> internal::problems_of_whole_states(const OptimizerPlan& plan,
                                                            const ParameterTable& table,
                                                            const std::vector<size_t>& group_of) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < table.size(); ++i) {
    const Algorithm* algorithm = find_algorithm(plan.options(group_of[i]));
    if (algorithm == nullptr || algorithm->whole_states == nullptr || !table[i].is_trainable) {
      continue;
    }
    try {
      algorithm->whole_states(*plan.options(group_of[i]).get(), table[i].tensor.sizes());
    } catch (...) {
      problems.push_back("[optim] " + subject_of(plan, group_of[i]) + ": parameter '" +
                         table[i].name + "': " + present_error_text());
    }
  }
  return problems;
}

std::vector<std::string> internal::lines_of_whole_states(const OptimizerPlan& plan,
                                                         const ParameterTable& table,
                                                         const std::vector<size_t>& group_of) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < table.size(); ++i) {
    const Algorithm& algorithm = plan.algorithm(group_of[i]);
    if (algorithm.whole_states == nullptr || !table[i].is_trainable) continue;
    const torch::optim::OptimizerOptions& options = *plan.options(group_of[i]).get();
    std::string line = "states of parameter '" + table[i].name + "':";
    for (const WholeState& state : algorithm.whole_states(options, table[i].tensor.sizes())) {
      line += " " + state.name + " " + c10::str(at::IntArrayRef(state.sizes)) +
              (state.dtype.has_value() ? c10::toString(*state.dtype) : "");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

absl::StatusOr<std::vector<size_t>> OptimizerPlan::assign(const ParameterTable& table) const {
  std::vector<std::string> problems;
  for (size_t g = 0; g <= groups.size(); ++g) append(problems, problems_of_options(*this, g));
  std::vector<size_t> group_of(table.size(), 0);
  std::vector<size_t> selected(groups.size(), 0);
  for (size_t index = 0; index < table.size(); ++index) {
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].selects || !selects(groups[g], table[index])) continue;
      // A later group may select this parameter, too, and then does not count as a group without
      // parameters. The parameter belongs to the first group that selects it.
      ++selected[g];
      if (group_of[index] == 0) group_of[index] = g + 1;
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].selects) {
      problems.push_back(no_predicate(groups[g]));
    } else if (selected[g] == 0) {
      problems.push_back(no_parameter(groups[g]));
    }
  }
  append(problems, problems_of_dimensions(*this, table, group_of));
  if (problems.empty()) problems = problems_of_whole_states(*this, table, group_of);
  if (problems.empty()) return group_of;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

const Algorithm& OptimizerPlan::algorithm(size_t group) const {
  const Algorithm* algorithm = find_algorithm(options(group));
  TORCH_CHECK(algorithm != nullptr, unknown_algorithm(*this, group));
  return *algorithm;
}

std::vector<std::string> OptimizerPlan::lines() const {
  std::vector<std::string> lines;
  for (size_t group = 0; group <= groups.size(); ++group) {
    lines.push_back("optimizer " + subject_of(*this, group) + ": " +
                    algorithm(group).line_of(*options(group).get()));
  }
  return lines;
}

}  // namespace tessera
