#include "tessera/core/process/variable_reader.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace tessera::internal {

std::optional<int64_t> whole_number(absl::string_view text, int64_t least, int64_t greatest) {
  int64_t number = 0;
  const bool is_number = text.find_first_not_of("0123456789") == absl::string_view::npos &&
                         absl::SimpleAtoi(text, &number) && number >= least && number <= greatest;
  return is_number ? std::optional(number) : std::nullopt;
}

std::optional<int> VariableReader::integer(const char* name, int least, int greatest,
                                           const char* limit) {
  const auto number = whole_number(text(name), least, greatest);
  const std::string why = is_set(limit) ? absl::StrCat(" (", limit, " is ", text(limit), ")") : "";
  expect(name, number.has_value(),
         absl::StrCat("an integer from ", least, " to ", greatest, why, " and nothing else"));
  if (!number) return std::nullopt;
  return static_cast<int>(*number);
}

void VariableReader::expect(const char* name, bool is_good, const std::string& expected) {
  if (is_good || !is_set(name)) return;
  problem(absl::StrCat(name, ": got '", text(name), "', expected ", expected));
}

void VariableReader::whole_family(const std::vector<const char*>& names,
                                  const std::string& remedy) {
  std::vector<const char*> present, missing;
  for (const char* name : names) (is_set(name) ? present : missing).push_back(name);
  if (present.empty() || missing.empty()) return;
  problem(absl::StrCat(absl::StrJoin(missing, ", "), ": not set, although ",
                       absl::StrJoin(present, ", "), present.size() == 1 ? " is" : " are", "; ",
                       remedy));
}

absl::Status VariableReader::error() const {
  return absl::InvalidArgumentError(
      absl::StrCat("[environment] ", absl::StrJoin(problems_, "\n[environment] ")));
}

}  // namespace tessera::internal
