#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A file that has what one stream of a worker says, as the worker wrote it. Without a path it is
/// none, and takes and keeps nothing.
class LogFile {
 public:
  LogFile() = default;
  /// Opens it for appending, and makes it and its folders where they are missing. Errors:
  /// Unavailable, naming the path and the system's reason.
  static absl::StatusOr<LogFile> open(const std::string& path);

  /// Writes `bytes`. A file that takes no more, as on a full disk, gets nothing from then on.
  void append(std::string_view bytes);
  /// Why the file takes no more, once; "" else.
  std::string take_problem();

 private:
  std::string path_;
  FileDescriptor file_;
  std::string problem_;
};

/// Local. Makes folder `path` and those above it. Errors: Unavailable, naming it.
absl::Status make_log_folder(const std::string& path);

}  // namespace tessera::internal
