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

/// Pass this as `greatest` to integer() if only the type limits the value.
constexpr int kGreatest = std::numeric_limits<int>::max();

/// Local. Returns the number in `text`; nullopt unless it has digits only and is in the range.
std::optional<int64_t> whole_number(absl::string_view text, int64_t least = 0,
                                    int64_t greatest = std::numeric_limits<int64_t>::max());

/// Reads environment variables and collects their problems.
class VariableReader {
 public:
  explicit VariableReader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  /// Returns true if the variable is set; false if `name` is null.
  bool is_set(const char* name) const { return name != nullptr && lookup_(name).has_value(); }
  /// Returns the value, or `otherwise` if the variable is not set.
  std::string text(const char* name, const std::string& otherwise = "") const {
    return is_set(name) ? *lookup_(name) : otherwise;
  }

  /// Returns the value if it is set and valid. If it is invalid, adds a problem that states the
  /// range. `limit` names the variable that determines the range, if one does; if that variable is
  /// set, the problem names it, too.
  std::optional<int> integer(const char* name, int least, int greatest,
                             const char* limit = nullptr);

  /// If the variable is set and `is_good` is false, adds a problem that states its value and the
  /// `expected` one.
  void expect(const char* name, bool is_good, const std::string& expected);

  /// If some of `names` are set and others are not, adds a problem that lists both and ends with
  /// `remedy`.
  void whole_family(const std::vector<const char*>& names, const std::string& remedy);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  bool has_problems() const { return !problems_.empty(); }

  /// Returns all problems, one per line. There must be at least one.
  absl::Status error() const;

 private:
  const EnvironmentLookup& lookup_;
  std::vector<std::string> problems_;
};

}  // namespace tessera::internal
