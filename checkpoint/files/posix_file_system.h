#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>

#include "tessera/checkpoint/files/file_system.h"

namespace tessera::internal {

/// The files of this machine. Keeps nothing: all objects are equal, and any thread may use one.
///
/// Locks are flock()'s: they end with the process that holds them, however it ends, so a lock never
/// outlives its job. A child of fork() keeps them as well.
class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::Status make_directory(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status remove_file(const std::string& path) override;
  absl::Status remove_directory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;
  absl::StatusOr<int64_t> free_bytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                 const std::string& holder) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                         bool alone) override;
};

/// "[checkpoint] cannot <operation> '<path>': <text of error> (errno <error>)".
absl::Status file_error(int error, std::string_view operation, std::string_view path);

/// Writes all of `bytes`, however little each write(2) takes and whatever signals interrupt it.
/// `path` is for the message.
absl::Status write_all(int fd, std::string_view bytes, const std::string& path);

}  // namespace tessera::internal
