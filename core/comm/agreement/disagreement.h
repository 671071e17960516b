#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

/// An error that all ranks know of and throw, so that no rank waits for another. Any other
/// exception concerns the throwing rank only.
class Disagreement : public c10::Error {
 public:
  explicit Disagreement(std::string text)
      : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)) {}
};

/// Runs code of the user and returns its result. Any exception of it is this rank's only, even a
/// Disagreement of another engine.
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
