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

/// An open safetensors file from any source; symbolic links are followed. Errors name it. Belongs
/// to one thread.
class TensorFile {
 public:
  /// Reads and checks the header. `files` must outlive the result.
  static absl::StatusOr<TensorFile> open(FileSystem& files, const std::string& path);
  /// Opens `path`, or, if it ends with ".json", the files in its directory that this index names
  /// ("weight_map": the file of each tensor). It is an error if a file lacks a tensor that the
  /// index puts there, or if two files have one tensor.
  static absl::StatusOr<std::vector<TensorFile>> open_all(FileSystem& files,
                                                          const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }

  /// A line that tells this file from another of the same name: its length, and a checksum of a
  /// sample that includes its beginning. Reads at most 192 KiB.
  absl::StatusOr<std::string> fingerprint() const;

  /// Fills `to` with the bytes of `tensor`, one of the header's, from its byte `offset` on.
  absl::Status read(const SafetensorsTensor& tensor, int64_t offset, absl::Span<char> to) const;

 private:
  absl::Status read_header(int64_t file_bytes);

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  int64_t data_begin_ = 0;
};

}  // namespace tessera::internal
