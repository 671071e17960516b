#include "tessera/core/error_text.h"

#include <c10/util/Exception.h>

namespace tessera {

std::string error_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
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

}  // namespace tessera
