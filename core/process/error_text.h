#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace tessera::internal {

/// Returns what() without c10::Error's backtrace, or the exception's type if there is no text.
/// Never empty.
std::string error_text(const std::exception& error);

/// Returns the text of the exception being handled, whatever its type.
std::string present_error_text();

/// Returns the exit code for a program that ends because of the exception being handled; see
/// record_errors().
int present_error_exit_code();

/// Returns the text of the exception that `body` throws; "" if it returns.
template <typename Body>
std::string thrown_by(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "";
}

/// Returns the result of the user function `predicate` for the parameter or module `name`. Rethrows
/// any exception as a c10::Error that names the predicate (`what`) and `name`.
template <typename Predicate, typename... Arguments>
bool ask(const Predicate& predicate, std::string_view what, std::string_view name,
         const Arguments&... arguments) {
  std::string thrown;
  try {
    return predicate(name, arguments...);
  } catch (...) {
    thrown = present_error_text();
  }
  TORCH_CHECK(false, what, " threw for '", name, "': ", thrown, "; correct it");
}

}  // namespace tessera::internal
