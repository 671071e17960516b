#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/safetensors.h"

namespace tessera::internal {

/// An open safetensors file from any source; symbolic links are followed. Errors name the file.
/// Belongs to one thread.
class TensorFile {
 public:
  /// Reads and checks the header. `files` must outlive the result.
  static absl::StatusOr<TensorFile> open(FileSystem& files, const std::string& path);
  /// Opens the file `path`. If `path` ends with ".json", it is an index, whose "weight_map" names
  /// the file of each tensor; then opens these files, which lie beside the index. It is an error if
  /// a file lacks a tensor that the index assigns to it, or if two files have the same tensor.
  static absl::StatusOr<std::vector<TensorFile>> open_all(FileSystem& files,
                                                          const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }

  /// Returns a line that distinguishes this file from another one of the same name: the file's
  /// length, and a checksum of three samples of its bytes: from the beginning, the middle and the
  /// end. Reads at most 192 KiB.
  absl::StatusOr<std::string> fingerprint() const;

  /// Fills `to` with the bytes of `tensor`, which is in header(), from the tensor's byte `offset`
  /// on.
  absl::Status read(const SafetensorsTensor& tensor, int64_t offset, absl::Span<char> to) const;

 private:
  absl::Status read_header(int64_t file_bytes);

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  int64_t data_begin_ = 0;
};

}  // namespace tessera::internal
