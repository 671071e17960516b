#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal {

/// A file is checked in blocks of this size (the last one may be shorter), so that a reader of a
/// part reads and verifies only the blocks that the part touches.
inline constexpr int64_t kBlockBytes = 1 << 20;

/// Returns the XXH3-64 checksum of `bytes`, with seed 0.
uint64_t checksum_of(std::string_view bytes);

/// Returns the number of blocks in a file of `bytes` bytes.
int64_t blocks_of(int64_t bytes);

/// Returns checksums as text for a manifest: 8 bytes each, the least significant first, together in
/// base64 (RFC 4648, with padding).
std::string pack_checksums(const std::vector<uint64_t>& checksums);
/// Reverses pack_checksums(). Returns nothing unless `text` is exactly what that function makes.
std::optional<std::vector<uint64_t>> unpack_checksums(std::string_view text);

}  // namespace tessera::internal
