#include "tessera/core/numbers/number_text.h"

#include <array>
#include <charconv>

namespace tessera::internal {

std::string number_text(double value) {
  std::array<char, 32> text;
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

}  // namespace tessera::internal
