#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A file that receives one output stream of a worker, unchanged. Without a path there is no file,
/// and output is discarded.
class LogFile {
 public:
  LogFile() = default;
  /// Opens the file for appending; makes it and its folders if they are missing. Errors:
  /// Unavailable, naming the path and the system's reason.
  static absl::StatusOr<LogFile> open(const std::string& path);

  /// Writes `bytes`. After a failed write, as on a full disk, writes nothing any more.
  void append(std::string_view bytes);
  /// Returns why writing failed, once; else "".
  std::string take_problem();

 private:
  std::string path_;
  FileDescriptor file_;
  std::string problem_;
};

/// Local. Makes folder `path` and its missing parents. Errors: as LogFile::open().
absl::Status make_log_folder(const std::string& path);

}  // namespace tessera::internal
