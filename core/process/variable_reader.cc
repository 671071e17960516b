#include "tessera/core/process/variable_reader.h"

#include <charconv>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace tessera::internal {
namespace {

constexpr int64_t kGreatest = 2147483647;

}  // namespace

std::optional<int> VariableReader::integer(const char* name, int64_t least, int64_t greatest) {
  const auto value = lookup_(name);
  if (!value) return std::nullopt;
  int64_t number = 0;
  const char* const end = value->data() + value->size();
  const auto [stop, error] = std::from_chars(value->data(), end, number);
  const bool digits_only =
      !value->empty() && value->find_first_not_of("0123456789") == std::string::npos;
  if (!digits_only || error != std::errc() || stop != end || number < least || number > greatest) {
    problem(absl::StrCat(name, ": got '", *value, "', expected an integer from ", least, " to ",
                         greatest, " and nothing else"));
    return std::nullopt;
  }
  return static_cast<int>(number);
}

bool VariableReader::whole_family(const std::vector<std::string>& names,
                                  const std::string& remedy) {
  std::vector<std::string> present;
  std::vector<std::string> missing;
  for (const std::string& name : names) (is_set(name) ? present : missing).push_back(name);
  if (!present.empty() && !missing.empty()) {
    problem(absl::StrCat(absl::StrJoin(missing, ", "), ": not set, although ",
                         absl::StrJoin(present, ", "), present.size() == 1 ? " is" : " are", "; ",
                         remedy));
  }
  return missing.empty();
}

absl::Status VariableReader::status() const {
  if (problems_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("[environment] ", absl::StrJoin(problems_, "\n[environment] ")));
}

std::optional<NumberAndCount> read_number_and_count(VariableReader& reader, const char* number_name,
                                                    const char* count_name) {
  const auto count = reader.integer(count_name, 1, kGreatest);
  const auto number = reader.integer(number_name, 0, kGreatest);
  if (!count || !number) return std::nullopt;
  if (*number >= *count) {
    reader.problem(absl::StrCat(number_name, ": got '", *number, "', expected less than ",
                                count_name, ", which is ", *count));
    return std::nullopt;
  }
  return NumberAndCount{*number, *count};
}

}  // namespace tessera::internal
