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

/// A safetensors file of anybody's, open, or what a symbolic link leads to. Errors name it. Belongs
/// to one thread.
class TensorFile {
 public:
  /// Reads and checks the header. `files` must outlive the result.
  static absl::StatusOr<TensorFile> open(FileSystem& files, const std::string& path);
  /// Opens `path`, or, where it ends with ".json", the files in its directory that this index names
  /// ("weight_map": the file of each tensor), which has to have what the index says. A tensor that
  /// is in two of them is an error.
  static absl::StatusOr<std::vector<TensorFile>> open_all(FileSystem& files,
                                                          const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }

  /// What tells this file from another of the same name: length, header and a sample of the values,
  /// in one line. Reads at most 192 KiB.
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
