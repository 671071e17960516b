#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

/// What ranks have found out together, so that each of them throws it and nobody waits for another.
/// Any other exception is one rank's own.
class Disagreement : public c10::Error {
 public:
  explicit Disagreement(std::string text)
      : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)) {}
};

/// Runs code of the user's, and returns what it returns. Whatever it throws is this rank's own,
/// also what the ranks of another engine have found out together.
template <typename Body>
auto as_own_error(Body&& body) {
  try {
    return body();
  } catch (const Disagreement& error) {
    throw c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                     error.what_without_backtrace());
  }
}

}  // namespace tessera::internal
