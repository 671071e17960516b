#include "tessera/optim/algorithm/algorithm.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

namespace {

/// Returns a short text that reads back as `value`: "0.0003".
std::string digits_of(double value) {
  std::array<char, 32> text;
  // The shortest form that reads back as the same value.
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (std::strtod(text.data(), nullptr) == value) break;
  }
  return text.data();
}

}  // namespace

bool HyperParameterField::allows(double value) const {
  if (is_switch) return value == 0.0 || value == 1.0;
  // 2^53: a double can hold every integer up to it.
  constexpr double kMostWhole = 9007199254740992.0;
  if (is_whole && (value != std::trunc(value) || std::abs(value) > kMostWhole)) return false;
  return std::isfinite(value) && value >= begin && value < end;
}

std::string HyperParameterField::problem(double value) const {
  if (allows(value)) return "";  // each update calls this and must not allocate
  const std::string got = name + ": got " + digits_of(value) + ", expected ";
  if (is_switch) return got + "0 or 1";
  const std::string kind = is_whole ? "a whole number" : "a finite number";
  if (std::isinf(begin)) return got + kind + (is_whole ? " of at most 2^53" : "");
  if (std::isinf(end)) return got + kind + ", at least 0";
  return got + digits_of(begin) + " <= " + name + " < " + digits_of(end) +
         (is_whole ? ", whole" : "");
}

std::string HyperParameterField::text(double value) const {
  if (is_switch) return value == 0.0 ? "" : name;
  return name + " " + digits_of(value);
}

int64_t HyperParameterField::word(double value) const {
  return is_switch ? static_cast<int64_t>(value) : std::bit_cast<int64_t>(value);
}

std::vector<HyperParameterField> fields_of(const ErasedForm& form) {
  using Options = HyperParameterField::Options;
  std::vector<HyperParameterField> fields = {
      {{.name = "lr",
        .is_switch = false,
        .is_whole = false,
        .chooses_states = false,
        .begin = 0,
        .end = std::numeric_limits<double>::infinity(),
        .read = [](const Options& options) { return options.get_lr(); },
        .write = [](Options& options, double value) { options.set_lr(value); }}}};
  for (const ErasedForm::Number& number : form.numbers) fields.push_back({number});
  return fields;
}

std::vector<std::string> Algorithm::problems_of(
    const std::string& subject, const torch::optim::OptimizerOptions& options) const {
  std::vector<std::string> problems;
  for (const HyperParameterField& field : hyper_parameters) {
    const std::string problem = field.problem(field.read(options));
    if (!problem.empty()) problems.push_back(absl::StrCat("[optim] ", subject, ": ", problem));
  }
  if (conflict != nullptr && problems.empty()) {
    const std::string problem = conflict(options);
    if (!problem.empty()) problems.push_back(absl::StrCat("[optim] ", subject, ": ", problem));
  }
  return problems;
}

std::string Algorithm::line_of(const torch::optim::OptimizerOptions& options) const {
  std::string line = name;
  for (const HyperParameterField& field : hyper_parameters) {
    const std::string text = field.text(field.read(options));
    if (!text.empty()) line += " " + text;
  }
  return note.empty() ? line : line + " " + note;
}

}  // namespace tessera::internal
