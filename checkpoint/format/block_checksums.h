#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal {

/// A file is checked in blocks of this size, the last one shorter: who needs a part of it reads and
/// verifies the blocks that the part touches.
inline constexpr int64_t kBlockBytes = 1 << 20;

/// XXH3-64 with seed 0.
uint64_t checksum_of(std::string_view bytes);

/// How many blocks a file of `bytes` has.
int64_t blocks_of(int64_t bytes);

/// Checksums as a manifest has them: 8 bytes each, the least significant first, together in base64
/// (RFC 4648, with padding).
std::string pack_checksums(const std::vector<uint64_t>& checksums);
/// Nothing unless `text` is what pack_checksums() makes, to the letter.
std::optional<std::vector<uint64_t>> unpack_checksums(std::string_view text);

}  // namespace tessera::internal
