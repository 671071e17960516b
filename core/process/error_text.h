#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace tessera::internal {

/// Returns what() without c10::Error's backtrace; the type if there is no text. Never empty.
std::string error_text(const std::exception& error);

/// Returns the text of the exception being handled, whatever its type.
std::string present_error_text();

/// Returns the exit code for a program that ends because of the exception being handled, as
/// record_errors() documents it.
int present_error_exit_code();

/// Returns the text of what `body` throws; "" if it returns.
template <typename Body>
std::string thrown_by(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "";
}

/// Returns what `predicate`, a function of the user's, says of the parameter or module `name`.
/// Whatever it throws becomes a c10::Error that names the predicate (`what`) and `name`.
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
