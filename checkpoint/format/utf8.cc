#include "tessera/checkpoint/format/utf8.h"

#include <cstddef>

namespace tessera::internal {

bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  for (size_t at = 0; at < text.size();) {
    const unsigned char first = byte(at);
    size_t length = 1;
    unsigned char least = 0x80,
                  most = 0xBF;  // of the second byte: no overlong forms, no surrogates
    if (first >= 0xC2 && first <= 0xDF) {
      length = 2;
    } else if (first >= 0xE0 && first <= 0xEF) {
      length = 3;
      if (first == 0xE0) least = 0xA0;
      if (first == 0xED) most = 0x9F;
    } else if (first >= 0xF0 && first <= 0xF4) {
      length = 4;
      if (first == 0xF0) least = 0x90;
      if (first == 0xF4) most = 0x8F;
    } else if (first >= 0x80) {
      return false;
    }
    if (text.size() - at < length) return false;
    for (size_t i = 1; i < length; ++i) {
      if (byte(at + i) < least || byte(at + i) > most) return false;
      least = 0x80;
      most = 0xBF;
    }
    at += length;
  }
  return true;
}

}  // namespace tessera::internal
