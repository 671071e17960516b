#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// Appends `text` as a JSON string; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

/// `value` as JSON has it: all digits, null for what is not finite.
std::string json_number(double value);

}  // namespace tessera::internal
