#include "tessera/strategy.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace tessera {
namespace {

/// Ends an AbslParseFlag(): if parsing succeeded, stores the result in `value` and returns true;
/// else stores the reason in `error` and returns false.
template <typename Value>
bool take_flag(const absl::StatusOr<Value>& parsed, Value* value, std::string* error) {
  if (parsed.ok()) {
    *value = *parsed;
  } else {
    *error = std::string(parsed.status().message());
  }
  return parsed.ok();
}

}  // namespace

const std::vector<StrategyName>& strategy_names() {
  static const std::vector<StrategyName> names = {
      {Strategy::kDdp, "ddp", "", "everything on every rank; gradients are all-reduced"},
      {Strategy::kZero1, "zero1", "", "optimizer state split over ranks"},
      {Strategy::kZero2, "zero2", "", "gradients and optimizer state split over ranks"},
      {Strategy::kZero3, "zero3", "fsdp",
       "parameters, gradients and optimizer state split over ranks"},
      {Strategy::kHybrid, "hybrid", "", "each split over as many ranks as the degrees p,g,o say"},
  };
  return names;
}

std::string_view to_string(Strategy strategy) {
  for (const StrategyName& row : strategy_names()) {
    if (row.strategy == strategy) return row.name;
  }
  return "unknown strategy";
}

absl::StatusOr<Strategy> parse_strategy(std::string_view text) {
  std::string known;
  for (const StrategyName& row : strategy_names()) {
    if (text == row.name || (!row.alias.empty() && text == row.alias)) return row.strategy;
    known.append(known.empty() ? "" : ", ").append(row.name);
    if (!row.alias.empty()) known.append(" (or ").append(row.alias).append(")");
  }
  return absl::InvalidArgumentError(absl::StrCat("[strategy] name: got \"",
                                                 absl::string_view(text.data(), text.size()),
                                                 "\", expected one of ", known));
}

bool AbslParseFlag(absl::string_view text, Strategy* strategy, std::string* error) {
  return take_flag(parse_strategy(std::string_view(text.data(), text.size())), strategy, error);
}

std::string AbslUnparseFlag(Strategy strategy) { return std::string(to_string(strategy)); }

bool keeps_partial_sums(const Degrees& degrees) {
  return degrees.gradients > 1 && degrees.gradients < degrees.optimizer;
}

bool keeps_gradient_buffers(const Degrees& degrees) {
  return degrees.gradients == 1 && degrees.optimizer > 1;
}

bool can_share_parameters(const Degrees& degrees) {
  return degrees.optimizer > 1 &&
         (degrees.parameters == 1 || degrees.parameters == degrees.optimizer);
}

std::string to_string(const Degrees& degrees) {
  return absl::StrCat(degrees.parameters, ",", degrees.gradients, ",", degrees.optimizer);
}

absl::StatusOr<Degrees> parse_degrees(std::string_view text) {
  const absl::string_view view(text.data(), text.size());
  const std::vector<absl::string_view> parts = absl::StrSplit(view, ',');
  Degrees degrees;
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &degrees.parameters) &&
      absl::SimpleAtoi(parts[1], &degrees.gradients) &&
      absl::SimpleAtoi(parts[2], &degrees.optimizer)) {
    return degrees;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[strategy] degrees: got \"", view,
                   "\", expected three numbers \"parameters,gradients,optimizer\" such as 2,4,4"));
}

bool AbslParseFlag(absl::string_view text, Degrees* degrees, std::string* error) {
  return take_flag(parse_degrees(std::string_view(text.data(), text.size())), degrees, error);
}

std::string AbslUnparseFlag(const Degrees& degrees) { return to_string(degrees); }

}  // namespace tessera
