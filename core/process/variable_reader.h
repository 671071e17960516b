#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "tessera/environment.h"

namespace tessera::internal {

constexpr int kGreatest = std::numeric_limits<int>::max();  ///< largest number of a variable

/// Local. Returns the number in `text`, if that has digits only and the number is in the range.
std::optional<int64_t> whole_number(absl::string_view text, int64_t least = 0,
                                    int64_t greatest = std::numeric_limits<int64_t>::max());

/// Reads variables and gathers what is wrong with them.
class VariableReader {
 public:
  explicit VariableReader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  /// A variable without a name (null) is never set.
  bool is_set(const char* name) const { return name != nullptr && lookup_(name).has_value(); }
  /// Returns the value, or `otherwise` if it is not set.
  std::string text(const char* name, const std::string& otherwise = "") const {
    return is_set(name) ? *lookup_(name) : otherwise;
  }

  /// Returns the value if it is set and good. Adds a problem if it is set and bad, which says the
  /// range, and the variable `limit` that the range follows from, if that is set.
  std::optional<int> integer(const char* name, int least, int greatest,
                             const char* limit = nullptr);

  /// Adds a problem, with its value and what was expected, if the variable is set and not good.
  void expect(const char* name, bool is_good, const std::string& expected);

  /// Adds a problem, which lists both and ends with `remedy`, if some are set and some are not.
  void whole_family(const std::vector<const char*>& names, const std::string& remedy);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  bool has_problems() const { return !problems_.empty(); }

  /// Returns all problems, a line each. There must be one.
  absl::Status error() const;

 private:
  const EnvironmentLookup& lookup_;
  std::vector<std::string> problems_;
};

}  // namespace tessera::internal
