#include "tessera/optimizer_plan.h"

#include <typeinfo>

#include <absl/status/status.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "tessera/optim/algorithms.h"

namespace tessera {
using namespace internal;

namespace {

std::string type_of(const AlgorithmOptions& options) {
  return options.get() == nullptr ? "no options" : c10::demangle(typeid(*options.get()).name());
}

/// Null if there is none.
const Algorithm* find_algorithm(const AlgorithmOptions& options) {
  return options.get() == nullptr ? nullptr : algorithm_of(*options.get());
}

std::string unknown_algorithm(const AlgorithmOptions& defaults) {
  return "[optim] defaults: got " + type_of(defaults) + ", expected " + known_options() +
         "; choose one of these";
}

/// What forbids the options of the plan, one line each.
std::vector<std::string> problems_of_options(const OptimizerPlan& plan) {
  const Algorithm* algorithm = find_algorithm(plan.defaults);
  if (algorithm == nullptr) return {unknown_algorithm(plan.defaults)};
  std::vector<std::string> problems = algorithm->problems_of("defaults", *plan.defaults.get());
  for (const OptimizerGroup& group : plan.groups) {
    const std::string subject = "group '" + group.name + "'";
    if (find_algorithm(group.options) != algorithm) {
      problems.push_back("[optim] " + subject + ": got " + type_of(group.options) + ", expected " +
                         algorithm->options_name +
                         ", which the defaults have; one algorithm updates all parameters");
      continue;
    }
    for (std::string& problem : algorithm->problems_of(subject, *group.options.get())) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

}  // namespace

absl::StatusOr<std::vector<size_t>> OptimizerPlan::assign(const ParameterTable& table) const {
  std::vector<std::string> problems = problems_of_options(*this);
  std::vector<size_t> group_of(table.size(), 0);
  std::vector<size_t> selected(groups.size(), 0);
  for (size_t index = 0; index < table.size(); ++index) {
    if (!table[index].is_trainable) continue;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].selects || !groups[g].selects(table[index].name)) continue;
      // A later group may select it too: it does not lack parameters, the order decides.
      ++selected[g];
      if (group_of[index] == 0) group_of[index] = g + 1;
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].selects) {
      problems.push_back("[optim] group '" + groups[g].name +
                         "': got no predicate, expected one; set selects");
    } else if (selected[g] == 0) {
      problems.push_back("[optim] group '" + groups[g].name +
                         "': got no trainable parameter, expected at least one; correct its "
                         "predicate or remove it");
    }
  }
  if (problems.empty()) return group_of;
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "\n") + problem;
  return absl::InvalidArgumentError(text);
}

const Algorithm& OptimizerPlan::algorithm() const {
  const Algorithm* algorithm = find_algorithm(defaults);
  TORCH_CHECK(algorithm != nullptr, unknown_algorithm(defaults));
  return *algorithm;
}

std::vector<std::string> OptimizerPlan::lines() const {
  const Algorithm& own = algorithm();
  std::vector<std::string> lines = {"optimizer defaults: " + own.line_of(*defaults.get())};
  for (const OptimizerGroup& group : groups) {
    lines.push_back("optimizer group '" + group.name + "': " + own.line_of(*group.options.get()));
  }
  return lines;
}

}  // namespace tessera
