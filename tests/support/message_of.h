#pragma once

#include <exception>
#include <string>
#include <utility>

#include "tessera/core/error_text.h"

namespace tessera::testing {

/// What `call` throws, without a backtrace; "nothing was thrown".
template <typename Call>
std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "nothing was thrown";
}

}  // namespace tessera::testing
