#pragma once

#include <cstdint>

#include <c10/util/Exception.h>

#include "tessera/errors.h"

namespace tessera::internal {

/// Runs code of the user and returns its result. Any exception of it is an error of this rank
/// alone, even another engine's ErrorOnAllRanks.
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
