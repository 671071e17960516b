#pragma once

#include <string>

namespace tessera::internal {

/// Local. Returns 256 random bits in hexadecimal, for example for a job's secret; "" if the system
/// has none.
std::string random_text();

}  // namespace tessera::internal
