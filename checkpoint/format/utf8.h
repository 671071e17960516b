#pragma once

#include <string_view>

namespace tessera::internal {

/// Whether `text` is well-formed UTF-8, which JSON must be.
bool is_utf8(std::string_view text);

}  // namespace tessera::internal
