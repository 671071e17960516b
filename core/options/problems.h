#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

/// Adds to a list of problems, a line each; a `problem` of "" is none.
inline void append(std::vector<std::string>& problems, std::string problem) {
  if (!problem.empty()) problems.push_back(std::move(problem));
}
inline void append(std::vector<std::string>& problems, std::vector<std::string> more) {
  for (std::string& problem : more) problems.push_back(std::move(problem));
}

/// Returns the result of `body`, or nothing after adding the text that it throws to `problems`.
template <typename Body>
auto attempt(std::vector<std::string>& problems, Body&& body) -> std::optional<decltype(body())> {
  try {
    return body();
  } catch (...) {  // also from the user's predicates
    problems.push_back(present_error_text());
  }
  return std::nullopt;
}

}  // namespace tessera::internal
