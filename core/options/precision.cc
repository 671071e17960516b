#include "tessera/precision.h"

#include <absl/strings/str_cat.h>

namespace tessera {
namespace {

using c10::ScalarType;

bool is_wide(ScalarType dtype) { return dtype == ScalarType::Float || dtype == ScalarType::Double; }

bool is_known(ScalarType dtype) {
  return is_wide(dtype) || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
}

/// Returns true if `wide` can represent every value of `narrow`.
bool holds(ScalarType wide, ScalarType narrow) {
  return wide == narrow || c10::elementSize(wide) > c10::elementSize(narrow);
}

std::string problem(const char* field, ScalarType got, std::string_view allowed,
                    std::string_view remedy) {
  return absl::StrCat("precision.", field, ": got ", c10::toString(got), "; allowed ",
                      absl::string_view(allowed.data(), allowed.size()), "; ",
                      absl::string_view(remedy.data(), remedy.size()));
}

}  // namespace

UnitPrecision resolve(const Precision& precision, ScalarType dtype) {
  UnitPrecision unit{};
  unit.parameters = precision.parameters.value_or(dtype);
  unit.communication = precision.communication.value_or(unit.parameters);
  unit.master = precision.master.value_or(is_wide(dtype) ? dtype : ScalarType::Float);
  if (!precision.master.has_value() && !holds(unit.master, unit.parameters)) {
    unit.master = unit.parameters;
  }
  unit.reduce = precision.reduce.value_or(unit.master);
  return unit;
}

std::vector<std::string> problems_of(const Precision& precision, ScalarType dtype) {
  constexpr std::string_view kAll = "Float, Double, BFloat16, Half";
  std::vector<std::string> problems;
  const auto check_known = [&](const char* field, std::optional<ScalarType> value) {
    if (value.has_value() && !is_known(*value)) {
      problems.push_back(problem(field, *value, kAll, "leave it out to follow the model"));
    }
  };
  check_known("parameters", precision.parameters);
  check_known("communication", precision.communication);
  check_known("reduce", precision.reduce);
  check_known("master", precision.master);
  if (!problems.empty()) return problems;

  const UnitPrecision unit = resolve(precision, dtype);
  if (!is_wide(unit.master)) {
    problems.push_back(problem("master", unit.master, "Float, Double",
                               "16-bit masters lose small updates; leave it out"));
  } else if (!holds(unit.master, unit.parameters)) {
    problems.push_back(problem("master", unit.master,
                               absl::StrCat("what holds ", c10::toString(unit.parameters)),
                               "leave it out or make it wider"));
  }
  if (holds(unit.reduce, unit.communication)) return problems;
  if (precision.reduce.has_value()) {
    problems.push_back(problem("reduce", unit.reduce,
                               absl::StrCat("what holds ", c10::toString(unit.communication)),
                               "leave it out or make communication narrower"));
  } else if (problems.empty()) {  // a problem of `master` would explain this one
    problems.push_back(problem("communication", unit.communication,
                               absl::StrCat("what ", c10::toString(unit.reduce), " holds"),
                               "make it narrower or set reduce"));
  }
  return problems;
}

std::string to_string(const Precision& precision) {
  const auto name = [](std::optional<ScalarType> dtype) {
    return dtype.has_value() ? c10::toString(*dtype) : "unset";
  };
  return absl::StrCat("precision parameters ", name(precision.parameters), " communication ",
                      name(precision.communication), " reduce ", name(precision.reduce), " master ",
                      name(precision.master));
}

}  // namespace tessera
