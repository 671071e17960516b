#include "tessera/core/launch/random_text.h"

#include <sys/random.h>

#include <array>

#include <absl/strings/escaping.h>

namespace tessera::internal {

std::string random_text() {
  std::array<char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  return absl::BytesToHexString({bytes.data(), bytes.size()});
}

}  // namespace tessera::internal
