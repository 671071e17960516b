#include "tessera/core/options/option_text.h"

#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "tessera/core/numbers/number_text.h"

namespace tessera::internal::option_text {
namespace {

std::string expected(const std::string& got, std::string_view what) {
  return absl::StrCat("got '", got, "', expected ", absl::string_view(what.data(), what.size()));
}

template <typename Enumerator>
std::string take_one_of(const std::string& given, std::initializer_list<Enumerator> all,
                        Enumerator& value) {
  std::vector<std::string> names;
  for (const Enumerator one : all) {
    names.push_back(text_of(one));
    if (names.back() != given) continue;
    value = one;
    return "";
  }
  return expected(given, absl::StrJoin(names, ", "));
}

}  // namespace

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int value) { return absl::StrCat(value); }
std::string text_of(double value) { return number_text(value); }
std::string text_of(Strategy value) { return std::string(to_string(value)); }
std::string text_of(Offload value) { return std::string(to_string(value)); }
std::string text_of(NonFinite value) { return value == NonFinite::kStop ? "stop" : "skip"; }
std::string text_of(Reproducible value) { return std::string(to_string(value)); }
std::string text_of(BufferSync value) { return std::string(to_string(value)); }
std::string text_of(const Degrees& value) { return to_string(value); }
std::string text_of(const Precision& value) {
  return std::string(absl::StripPrefix(to_string(value), "precision "));
}
std::string text_of(const WrapPolicy& value) { return value.choose ? value.name : "unset"; }
std::string text_of(const std::map<std::string, double>& value) {
  return absl::StrJoin(value, " ", [](std::string* text, const auto& entry) {
    absl::StrAppend(text, "'", entry.first, "' ", number_text(entry.second));
  });
}
std::string text_of(const std::vector<int64_t>& value) {
  return value.empty() ? "unset" : absl::StrJoin(value, " ");
}
std::string text_of(const LossScale& value) {
  return absl::StrCat(number_text(value.initial), " ", number_text(value.growth), " ",
                      number_text(value.backoff), " ", value.growth_interval);
}
std::string text_of(const WeightAverage& value) {
  return absl::StrCat(
      value.decay.has_value() ? absl::StrCat("decay ", number_text(*value.decay)) : "mean",
      " from step ", value.start_step, ", every ", value.every);
}

std::string take(const std::string& given, bool& value) {
  return absl::SimpleAtob(given, &value) ? "" : expected(given, "true or false");
}
std::string take(const std::string& given, int& value) {
  return absl::SimpleAtoi(given, &value) ? "" : expected(given, "a whole number");
}
std::string take(const std::string& given, double& value) {
  double number = 0.0;
  // "inf" and "nan" are numbers here. "1e999", which SimpleAtod() also reads as infinity, is not.
  const bool is_number = absl::SimpleAtod(given, &number) &&
                         (std::isfinite(number) || given.find_first_of("nN") != std::string::npos);
  if (!is_number) return expected(given, "a number");
  value = number;
  return "";
}
std::string take(const std::string& given, Strategy& value) {
  const auto parsed = parse_strategy(given);
  if (parsed.ok()) value = *parsed;
  return std::string(absl::StripPrefix(parsed.status().message(), "[strategy] name: "));
}
std::string take(const std::string& given, Degrees& value) {
  const auto parsed = parse_degrees(given);
  if (parsed.ok()) value = *parsed;
  return std::string(absl::StripPrefix(parsed.status().message(), "[strategy] degrees: "));
}
std::string take(const std::string& given, Offload& value) {
  return take_one_of(given, {Offload::kNone, Offload::kOptimizer, Offload::kParameters}, value);
}
std::string take(const std::string& given, NonFinite& value) {
  return take_one_of(given, {NonFinite::kStop, NonFinite::kSkip}, value);
}
std::string take(const std::string& given, Reproducible& value) {
  return take_one_of(given, {Reproducible::kOneWorldSize, Reproducible::kAnyWorldSize}, value);
}
std::string take(const std::string& given, BufferSync& value) {
  return take_one_of(given, {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}, value);
}
std::string take(const std::string& given, std::vector<int64_t>& value) {
  std::vector<int64_t> numbers;
  if (given == "unset") {
    value.clear();
    return "";
  }
  for (const absl::string_view part : absl::StrSplit(given, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) {
      return expected(given, "whole numbers with spaces between them");
    }
  }
  value = std::move(numbers);
  return "";
}
std::string take(const std::string& given, Precision& value) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    if (given != c10::toString(dtype)) continue;
    value.parameters = dtype;
    return "";
  }
  return expected(given, "Float, Double, BFloat16 or Half, what parameters are computed in");
}
std::string take(const std::string& given, LossScale& value) { return take(given, value.initial); }
std::string take(const std::string& given, WeightAverage& value) {
  if (given == "mean") return "";
  value.decay.emplace();
  return take(given, *value.decay).empty() ? "" : expected(given, "a decay, or mean");
}

}  // namespace tessera::internal::option_text
