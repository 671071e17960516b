#pragma once

#include <string>

namespace tessera::internal {

/// Local. 256 random bits in hexadecimal, such as a job's secret; "" if the system has none.
std::string random_text();

}  // namespace tessera::internal
