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
  if (options.get() == nullptr) return nullptr;
  return options.algorithm() != nullptr ? options.algorithm() : algorithm_of(*options.get());
}

std::string subject_of(const OptimizerPlan& plan, size_t group) {
  return group == 0 ? "defaults" : "group '" + plan.groups[group - 1].name + "'";
}

std::string unknown_algorithm(const OptimizerPlan& plan, size_t group) {
  return "[optim] " + subject_of(plan, group) + ": got " + type_of(plan.options(group)) +
         ", expected " + known_options() +
         "; choose one of these, or hand an optimizer of your own to tessera::elementwise";
}

/// What forbids the options of the plan, one line each.
std::vector<std::string> problems_of_options(const OptimizerPlan& plan) {
  std::vector<std::string> problems;
  for (size_t group = 0; group <= plan.groups.size(); ++group) {
    const Algorithm* algorithm = find_algorithm(plan.options(group));
    if (algorithm == nullptr) {
      problems.push_back(unknown_algorithm(plan, group));
      continue;
    }
    const torch::optim::OptimizerOptions& options = *plan.options(group).get();
    std::vector<std::string> own = algorithm->problems_of(subject_of(plan, group), options);
    if (own.empty() && algorithm->probe) {
      if (std::string found = algorithm->probe(options); !found.empty()) {
        own.push_back("[optim] " + subject_of(plan, group) + ": " + found);
      }
    }
    for (std::string& problem : own) problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace

absl::StatusOr<std::vector<size_t>> OptimizerPlan::assign(const ParameterTable& table) const {
  std::vector<std::string> problems = problems_of_options(*this);
  std::vector<size_t> group_of(table.size(), 0);
  std::vector<size_t> selected(groups.size(), 0);
  for (size_t index = 0; index < table.size(); ++index) {
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].selects || !groups[g].selects(table[index].name, table[index].tensor)) {
        continue;
      }
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
                         "': got no parameter, expected at least one, trained or frozen; correct "
                         "its predicate or remove it");
    }
  }
  if (problems.empty()) return group_of;
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "\n") + problem;
  return absl::InvalidArgumentError(text);
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
