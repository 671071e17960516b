#pragma once

#include <cstdint>

#include <c10/util/Exception.h>

#include "tessera/errors.h"

namespace tessera::internal {

/// Runs user code and returns its result. If the code throws ErrorOnAllRanks, such as another
/// engine's, rethrows it as c10::Error, because here it is an error of this rank alone.
template <typename Body>
auto as_own_error(Body&& body) {
  try {
    return body();
  } catch (const ErrorOnAllRanks& error) {
    throw c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                     error.what_without_backtrace());
  }
}

}  // namespace tessera::internal
