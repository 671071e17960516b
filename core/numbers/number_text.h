#pragma once

#include <string>

namespace tessera::internal {

/// The shortest text that reads back as the same value, so that different values never look alike.
std::string number_text(double value);

}  // namespace tessera::internal
