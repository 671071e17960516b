#pragma once

#include <exception>
#include <string>

namespace tessera {

/// what() without the backtrace that c10::Error carries and no user or peer wants to read.
std::string error_text(const std::exception& error);

}  // namespace tessera
