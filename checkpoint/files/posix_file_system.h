#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// Permissions of the files and directories that are made.
struct PosixFileOptions {
  /// false: modes 0600 and 0700, so that only the owner has access. true: modes 0666 and 0777
  /// without the bits that the umask clears.
  bool group_access = false;
};

/// The file system of this machine. Any thread may use an object of this class.
///
/// best_effort.h has the calls that a file system may refuse. If the file system has no locks,
/// lock() creates "<path>.held" instead (hold_file()), and says so on stderr, once per process.
class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(PosixFileOptions options = {}) : options_(options) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::Status make_directory(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  bool can_rename() const override { return true; }
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status remove_file(const std::string& path) override;
  absl::Status remove_directory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                 const std::string& holder) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                         bool alone) override;

 private:
  const PosixFileOptions options_;
};

/// Writes all of `bytes`, also after short writes and signals. `path` is for the message.
absl::Status write_all(int fd, std::string_view bytes, const std::string& path);

}  // namespace tessera::internal
