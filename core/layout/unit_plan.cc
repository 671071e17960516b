#include "tessera/unit_plan.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera {

UnitPlan::UnitPlan(const ParameterTable& table, std::vector<Membership> units, int slices,
                   const Precision& precision)
    : unit_of_(table.size(), -1), position_of_(table.size(), 0) {
  units_.reserve(units.size());
  for (Membership& membership : units) {
    TORCH_INTERNAL_ASSERT(!membership.parameters.empty(), "unit '", membership.name, "' is empty");
    std::vector<int64_t> numels;
    numels.reserve(membership.parameters.size());
    for (size_t index : membership.parameters) {
      TORCH_INTERNAL_ASSERT(index < table.size(), "unit '", membership.name, "' lists parameter ",
                            index, " of ", table.size());
      const Parameter& parameter = table[index];
      TORCH_INTERNAL_ASSERT(parameter.is_trainable == (membership.kind != UnitKind::kFrozen),
                            "unit '", membership.name, "' lists the ",
                            parameter.is_trainable ? "trainable" : "frozen", " parameter '",
                            parameter.name, "'");
      TORCH_INTERNAL_ASSERT(unit_of_[index] < 0, "parameter '", parameter.name,
                            "' is listed twice, the second time in unit '", membership.name, "'");
      TORCH_INTERNAL_ASSERT(parameter.dtype == table[membership.parameters.front()].dtype, "unit '",
                            membership.name, "' mixes dtypes at parameter '", parameter.name, "'");
      unit_of_[index] = static_cast<std::ptrdiff_t>(units_.size());
      position_of_[index] = numels.size();
      numels.push_back(parameter.tensor.numel());
    }
    const Parameter& first = table[membership.parameters.front()];
    const UnitPrecision dtypes = resolve(first.precision(precision), first.dtype);
    units_.push_back({.index = units_.size(),
                      .name = std::move(membership.name),
                      .parameters = std::move(membership.parameters),
                      .layout = FlatLayout(dtypes.parameters, std::move(numels), slices),
                      .precision = dtypes,
                      .kind = membership.kind});
    if (membership.kind == UnitKind::kFrozen) continue;
    TORCH_INTERNAL_ASSERT(++trainable_size_ == units_.size(), "unit '", units_.back().name,
                          "' follows a frozen one");
  }
  for (size_t index = 0; index < table.size(); ++index) {
    TORCH_INTERNAL_ASSERT(unit_of_[index] >= 0 || !table[index].is_trainable, "parameter '",
                          table[index].name, "' is in no unit");
  }
}

bool UnitPlan::has_place(size_t parameter) const {
  return parameter < unit_of_.size() && unit_of_[parameter] >= 0;
}

UnitPlan::Place UnitPlan::place(size_t parameter) const {
  TORCH_INTERNAL_ASSERT(has_place(parameter), "parameter ", parameter, " is in no unit");
  return {static_cast<size_t>(unit_of_[parameter]), position_of_[parameter]};
}

bool UnitPlan::is_used(size_t unit, const std::vector<uint8_t>& used) const {
  const std::vector<size_t>& members = units_[unit].parameters;
  return std::any_of(members.begin(), members.end(),
                     [&used](size_t index) { return used[index] != 0; });
}

int64_t UnitPlan::numel() const {
  int64_t sum = 0;
  for (const PlannedUnit& unit : units_) sum += unit.layout.numel();
  return sum;
}

int64_t UnitPlan::bytes() const {
  int64_t sum = 0;
  for (const PlannedUnit& unit : units_) sum += unit.layout.bytes();
  return sum;
}

std::vector<std::string> UnitPlan::lines(const ParameterTable& table) const {
  std::vector<std::string> lines;
  lines.reserve(units_.size());
  for (const PlannedUnit& unit : units_) {
    std::string line = "unit '" + unit.name + "': " + c10::toString(unit.layout.dtype()) +
                       (unit.kind == UnitKind::kRoot     ? " root"
                        : unit.kind == UnitKind::kFrozen ? " frozen"
                                                         : "") +
                       " numel " + std::to_string(unit.layout.numel()) + " slices " +
                       std::to_string(unit.layout.slices()) + " parameters";
    for (size_t index : unit.parameters) line += " '" + table[index].name + "'";
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera
