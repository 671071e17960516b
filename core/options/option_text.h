#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/options.h"

namespace tessera::internal::option_text {

// text_of() returns the value of a field of Options as text: for messages, for reports, and to
// compare options across ranks.

std::string text_of(bool value);
std::string text_of(int value);
std::string text_of(double value);
std::string text_of(Strategy value);
std::string text_of(Offload value);
std::string text_of(NonFinite value);
std::string text_of(Reproducible value);
std::string text_of(BufferSync value);
std::string text_of(const Degrees& value);
std::string text_of(const Precision& value);
std::string text_of(const WrapPolicy& value);
std::string text_of(const std::map<std::string, double>& value);
std::string text_of(const std::vector<int64_t>& value);
std::string text_of(const LossScale& value);
std::string text_of(const WeightAverage& value);
template <typename Answer, typename Question>
std::string text_of(const std::function<Answer(Question)>& value) {
  return value ? "set" : "unset";
}
template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value.has_value() ? text_of(*value) : "unset";
}

// take() reads `value` from the text `given`. Returns "" if that worked; else returns what is
// wrong, and `value` is unspecified.

std::string take(const std::string& given, bool& value);
std::string take(const std::string& given, int& value);
std::string take(const std::string& given, double& value);
std::string take(const std::string& given, Strategy& value);
std::string take(const std::string& given, Degrees& value);
std::string take(const std::string& given, Offload& value);
std::string take(const std::string& given, NonFinite& value);
std::string take(const std::string& given, Reproducible& value);
std::string take(const std::string& given, BufferSync& value);
std::string take(const std::string& given, std::vector<int64_t>& value);
std::string take(const std::string& given, Precision& value);      // sets Precision::parameters
std::string take(const std::string& given, LossScale& value);      // sets LossScale::initial
std::string take(const std::string& given, WeightAverage& value);  // sets WeightAverage::decay

}  // namespace tessera::internal::option_text
