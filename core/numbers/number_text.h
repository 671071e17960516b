#pragma once

#include <string>

namespace tessera::internal {

/// Returns the shortest text that reads back as the same value, so texts of different values
/// differ.
std::string number_text(double value);

}  // namespace tessera::internal
