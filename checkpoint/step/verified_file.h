#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <absl/types/span.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/manifest.h"

namespace tessera::internal {

/// Reads a file whose checksums are in a manifest. Verifies everything that it returns, and reads
/// only the blocks that a range touches. Keeps one block in memory. Belongs to one thread.
class VerifiedFile {
 public:
  /// `description` must outlive this.
  VerifiedFile(std::unique_ptr<ReadableFile> file, std::string path,
               const ManifestFile& description);

  /// Fills `to` with the bytes from `offset` on, which must all lie within the file. DataLoss names
  /// the file and the first damaged block; `to` may be partly filled with bad bytes then.
  absl::Status read(int64_t offset, absl::Span<char> to);
  /// Reads and verifies block `index`, without returning it.
  absl::Status verify_block(int64_t index);

 private:
  int64_t block_bytes(int64_t index) const;
  absl::Status read_block(int64_t index, absl::Span<char> to);
  absl::Status load_block(int64_t index);

  const std::unique_ptr<ReadableFile> file_;
  const std::string path_;
  const ManifestFile& description_;
  std::vector<char> block_;
  int64_t block_index_ = -1;  // the verified block in block_; -1: none
};

/// Returns the error for damage in a committed step: "[checkpoint] '<path>': <problem>; <remedy>".
absl::Status damage(const std::string& path, absl::string_view problem);

}  // namespace tessera::internal
