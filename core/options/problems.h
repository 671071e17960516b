#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

/// Appends `problem`, a single line, to `problems`; does nothing if `problem` is "".
inline void append(std::vector<std::string>& problems, std::string problem) {
  if (!problem.empty()) problems.push_back(std::move(problem));
}
inline void append(std::vector<std::string>& problems, std::vector<std::string> more) {
  for (std::string& problem : more) problems.push_back(std::move(problem));
}

/// Returns the result of `body`. If it throws, adds the exception's text to `problems` and returns
/// nullopt.
template <typename Body>
auto attempt(std::vector<std::string>& problems, Body&& body) -> std::optional<decltype(body())> {
  try {
    return body();
  } catch (...) {  // user predicates may throw anything
    problems.push_back(present_error_text());
  }
  return std::nullopt;
}

}  // namespace tessera::internal
