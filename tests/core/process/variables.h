#pragma once

#include <map>
#include <optional>
#include <string>

#include "tessera/environment.h"

namespace tessera::internal::testing {

using Variables = std::map<std::string, std::string>;

inline EnvironmentLookup lookup_in(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

/// What is wrong with them; "" if nothing is.
inline std::string problems(const Variables& variables) {
  return std::string(read_environment(lookup_in(variables)).status().message());
}

/// A file of tests/core/process/environments, whose first line says how it was recorded.
Variables recorded(const std::string& name);

}  // namespace tessera::internal::testing
