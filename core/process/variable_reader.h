#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// Reads variables and gathers what is wrong with them.
class VariableReader {
 public:
  explicit VariableReader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool is_set(const char* name) const { return lookup_(name).has_value(); }
  bool is_set(const std::string& name) const { return is_set(name.c_str()); }
  std::string text(const char* name) const { return lookup_(name).value_or(""); }

  /// The value if it is set and good; a problem if it is set and bad.
  std::optional<int> integer(const char* name, int64_t least, int64_t greatest);

  /// A problem if some are set and some are not, which lists both and ends with `remedy`. Returns
  /// whether all are set.
  bool whole_family(const std::vector<std::string>& names, const std::string& remedy);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  bool has_problems() const { return !problems_.empty(); }

  /// All problems, a line each.
  absl::Status status() const;

 private:
  const EnvironmentLookup& lookup_;
  std::vector<std::string> problems_;
};

/// A number that counts from 0, and how many there are.
struct NumberAndCount {
  int number = 0;
  int count = 1;
};

/// Both, if both are set and good and the number is less than the count; else problems for what is
/// set and bad.
std::optional<NumberAndCount> read_number_and_count(VariableReader& reader, const char* number_name,
                                                    const char* count_name);

}  // namespace tessera::internal
