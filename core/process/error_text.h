#pragma once

#include <exception>
#include <string>

namespace tessera::internal {

/// what() without the backtrace that c10::Error carries and no user or peer wants to read; the type
/// where there is no text. Never empty.
std::string error_text(const std::exception& error);

/// The same of the exception that is being handled, whatever its type.
std::string present_error_text();

}  // namespace tessera::internal
