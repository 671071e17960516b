#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// Returns why `text` is not allowed in JSON, "got X, expected Y"; "" if it is well-formed UTF-8.
std::string utf8_problem(std::string_view text);

}  // namespace tessera::internal
