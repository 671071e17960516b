#include "tessera/core/process/error_text.h"

#include <typeinfo>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

namespace tessera::internal {

std::string error_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  if (text.empty()) text = absl::StrCat("a ", c10::demangle(typeid(error).name()), " without text");
  return text;
}

std::string present_error_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error_text(error);
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace tessera::internal
