#include "tessera/core/process/error_text.h"

#include <stdexcept>
#include <typeinfo>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <c10/util/Type.h>

#include "tessera/errors.h"

namespace tessera::internal {

std::string error_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const char* const what =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  std::string text(absl::NullSafeStringView(what));
  if (text.empty()) text = absl::StrCat("a ", c10::demangle(typeid(error).name()), " without text");
  return text;
}

std::string present_error_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error_text(error);
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return std::string(absl::NullSafeStringView(text));
  } catch (...) {
    return "an exception of unknown type";
  }
}

int present_error_exit_code() {
  constexpr int kBadUsage = 64;  // EX_USAGE of sysexits.h
  try {
    throw;
  } catch (const RankError& error) {
    const int code = error.ending().exit_code;
    return code >= 1 && code <= 255 ? code : 1;  // any other code would not count as a failure
  } catch (const std::invalid_argument&) {
    return kBadUsage;
  } catch (...) {
    return 1;
  }
}

}  // namespace tessera::internal
