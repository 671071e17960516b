#include "tessera/fsdp/unit_membership.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "tessera/fsdp/module_tree.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal {
namespace {

using Units = std::vector<std::vector<std::string>>;

/// The number of the group of parameters that lie in no chosen module. Groups 1, 2, ... are the
/// chosen units.
constexpr size_t kRootGroup = 0;

std::string quoted(const std::string& name) { return absl::StrCat("'", name, "'"); }

/// Returns for each module in `tree` the number of the unit that lists it, counted from 1, or
/// kRootGroup if none does. Throws c10::Error that lists what is wrong with `units`. `rule` is the
/// policy's name, for that text.
std::vector<size_t> groups_of_modules(const ModuleTree& tree, const Units& units,
                                      const std::string& rule) {
  std::vector<size_t> group_of(tree.size(), kRootGroup);
  std::vector<std::string> chosen_as(tree.size());
  std::vector<std::string> problems;
  const auto complain = [&problems](const std::string& name, auto... what) {
    problems.push_back(absl::StrCat("module ", quoted(name), ": got ", what...));
  };
  for (size_t group = 1; group <= units.size(); ++group) {
    const std::vector<std::string>& names = units[group - 1];
    if (names.empty()) {
      problems.push_back(absl::StrCat("unit ", group - 1,
                                      ": got an empty list, expected names of modules; leave the "
                                      "list out"));
    }
    for (const std::string& name : names) {
      const std::optional<size_t> node = name.empty() ? std::nullopt : tree.find(name);
      if (!node.has_value()) {
        complain(name, "an unknown name, expected a module below the model; correct the name");
      } else if (!tree[*node].owns_parameters) {
        complain(name, "no parameters in it or below, expected some; leave the name out");
      } else if (group_of[*node] != kRootGroup) {
        const std::string& first = chosen_as[*node];
        complain(name, "it a second time",
                 first == name ? "" : absl::StrCat(", it is ", quoted(first), " too"),
                 ", expected each module in one unit once; leave one of the two out");
      } else {
        group_of[*node] = group;
        chosen_as[*node] = name;
      }
    }
  }
  if (!problems.empty()) {
    std::vector<std::string> known;
    for (size_t node = 1; node < tree.size(); ++node) {
      if (tree[node].owns_parameters) known.push_back(quoted(tree[node].name));
    }
    TORCH_CHECK(false, "[wrap] ", rule, ": these units cannot be made:\n  [wrap] ",
                absl::StrJoin(problems, "\n  [wrap] "), "\n  modules with parameters: ",
                known.empty() ? "none" : absl::StrJoin(known, ", "));
  }
  return group_of;
}

/// Returns the innermost group that contains `parameter` under all its names.
size_t group_of_parameter(const Parameter& parameter, const ModuleTree& tree,
                          const std::vector<size_t>& group_of_module) {
  std::vector<std::vector<size_t>> paths;
  const auto add_path = [&](const std::string& name) {
    std::vector<size_t> groups;
    for (size_t node : tree.path_of_parameter(name)) {
      if (group_of_module[node] != kRootGroup) groups.push_back(group_of_module[node]);
    }
    groups.push_back(kRootGroup);
    paths.push_back(std::move(groups));
  };
  add_path(parameter.name);
  for (const std::string& name : parameter.other_names) add_path(name);
  return common(paths).front();
}

/// What the parameters of one unit must have in common.
struct Trait {
  bool is_frozen;
  at::ScalarType dtype;
  bool keeps_dtype;
  auto operator<=>(const Trait&) const = default;
};

/// Returns `name`, or, if `taken` has it already (a module may be called "root"), `name` with a
/// number appended. Adds the result to `taken`.
std::string distinct(const std::string& name, std::set<std::string>& taken) {
  std::string candidate = name;
  for (int number = 2; !taken.insert(candidate).second; ++number) {
    candidate = absl::StrCat(name, " (", number, ")");
  }
  return candidate;
}

/// Divides the parameters of `group` into units, one for each Trait that occurs among them, and
/// appends these units to `units`.
void append_units(const std::string& group_name, UnitKind kind, const std::vector<size_t>& group,
                  const ParameterTable& table, std::set<std::string>& taken,
                  std::vector<UnitPlan::Membership>& units) {
  std::map<Trait, std::vector<size_t>> parts;
  for (size_t index : group) {
    const Parameter& parameter = table[index];
    parts[{!parameter.is_trainable, parameter.dtype, parameter.keeps_dtype}].push_back(index);
  }
  for (auto& [trait, parameters] : parts) {
    const auto dtypes =
        std::count_if(parts.begin(), parts.end(), [is_frozen = trait.is_frozen](const auto& part) {
          return part.first.is_frozen == is_frozen;
        });
    std::vector<std::string> notes;
    if (trait.is_frozen) notes.emplace_back("frozen");
    if (dtypes > 1)
      notes.emplace_back(trait.keeps_dtype ? "BatchNorm" : c10::toString(trait.dtype));
    const std::string name = notes.empty()
                                 ? group_name
                                 : absl::StrCat(group_name, " (", absl::StrJoin(notes, ", "), ")");
    units.push_back({.name = distinct(name, taken),
                     .parameters = std::move(parameters),
                     .kind = trait.is_frozen ? UnitKind::kFrozen : kind});
  }
}

bool is_launched_before(const UnitPlan::Membership& a, const UnitPlan::Membership& b) {
  const auto stage = [](const UnitPlan::Membership& unit) {
    return unit.kind == UnitKind::kPlain ? 0 : unit.kind == UnitKind::kRoot ? 1 : 2;
  };
  if (stage(a) != stage(b)) return stage(a) < stage(b);
  return a.parameters.front() > b.parameters.front();
}

}  // namespace

std::vector<UnitPlan::Membership> unit_membership(const torch::nn::Module& model,
                                                  const ParameterTable& table,
                                                  const WrapPolicy& policy) {
  if (!policy.choose) return unit_membership(model, table, wrap_blocks());
  const ModuleTree tree(model);
  const Units chosen = policy.choose(model);
  const std::vector<size_t> group_of_module = groups_of_modules(tree, chosen, policy.name);

  std::vector<std::vector<size_t>> groups(chosen.size() + 1);
  for (size_t index = 0; index < table.size(); ++index) {
    groups[group_of_parameter(table[index], tree, group_of_module)].push_back(index);
  }

  std::set<std::string> taken;
  std::vector<UnitPlan::Membership> units;
  append_units("root", UnitKind::kRoot, groups[kRootGroup], table, taken, units);
  for (size_t group = 1; group < groups.size(); ++group) {
    append_units(absl::StrJoin(chosen[group - 1], " + "), UnitKind::kPlain, groups[group], table,
                 taken, units);
  }
  std::sort(units.begin(), units.end(), is_launched_before);
  return units;
}

}  // namespace tessera::internal
