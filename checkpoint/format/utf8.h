#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// What forbids `text`, "got X, expected Y"; "" if it is well-formed UTF-8, which JSON must be.
std::string utf8_problem(std::string_view text);

}  // namespace tessera::internal
