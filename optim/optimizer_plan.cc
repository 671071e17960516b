#include "tessera/optim/optimizer_plan.h"

#include <absl/status/status.h>

#include "tessera/optim/adamw_options.h"

namespace tessera {

absl::StatusOr<std::vector<size_t>> OptimizerPlan::assign(const ParameterTable& table) const {
  std::vector<std::string> problems = adamw_problems("defaults", defaults);
  for (const OptimizerGroup& group : groups) {
    for (std::string& problem : adamw_problems("group '" + group.name + "'", group.options)) {
      problems.push_back(std::move(problem));
    }
  }

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

std::vector<std::string> OptimizerPlan::lines() const {
  std::vector<std::string> lines = {"optimizer defaults: " + to_string(defaults)};
  for (const OptimizerGroup& group : groups) {
    lines.push_back("optimizer group '" + group.name + "': " + to_string(group.options));
  }
  return lines;
}

}  // namespace tessera
