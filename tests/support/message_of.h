#pragma once

#include <exception>
#include <string>
#include <utility>

#include "tessera/core/process/error_text.h"

namespace tessera::internal::testing {

inline constexpr const char* kNothingThrown = "nothing was thrown";

/// Returns the error that `call` throws, without a backtrace, or kNothingThrown.
template <typename Call>
std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return kNothingThrown;
}

}  // namespace tessera::internal::testing
