#include "tessera/checkpoint/format/block_checksums.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include <absl/strings/escaping.h>

namespace tessera::internal {

// Checksums, header lengths and values go to disk as they are in memory.
static_assert(std::endian::native == std::endian::little);

uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

int64_t blocks_of(int64_t bytes) {
  return bytes / kBlockBytes + (bytes % kBlockBytes != 0 ? 1 : 0);
}

std::string pack_checksums(const std::vector<uint64_t>& checksums) {
  const auto* const bytes = reinterpret_cast<const char*>(checksums.data());
  return absl::Base64Escape({bytes, checksums.size() * sizeof(uint64_t)});
}

std::optional<std::vector<uint64_t>> unpack_checksums(std::string_view text) {
  std::string bytes;
  if (!absl::Base64Unescape({text.data(), text.size()}, &bytes)) return std::nullopt;
  if (bytes.size() % sizeof(uint64_t) != 0) return std::nullopt;
  std::vector<uint64_t> checksums(bytes.size() / sizeof(uint64_t));
  if (!bytes.empty()) std::memcpy(checksums.data(), bytes.data(), bytes.size());
  // Rejects other spellings of base64: with spaces, without padding, with bits beyond the end.
  if (pack_checksums(checksums) != text) return std::nullopt;
  return checksums;
}

}  // namespace tessera::internal
