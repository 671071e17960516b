#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// Reads from another file system. A call that fails with a transient error (is_transient()), such
/// as an unreachable server or a stale cache, is repeated after pauses. Says so on stderr, once for
/// each call.
class RetryingFileSystem final : public ReadableFileSystem {
 public:
  /// `files` must outlive this. Once `patience` has gone by since a call's first transient error,
  /// the call is not repeated again, and its last error is returned.
  explicit RetryingFileSystem(ReadableFileSystem& files,
                              std::chrono::milliseconds patience = std::chrono::seconds(10))
      : files_(files), patience_(patience) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;
  bool can_rename() const override { return files_.can_rename(); }
  absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                         bool alone) override;

 private:
  ReadableFileSystem& files_;
  const std::chrono::milliseconds patience_;
};

}  // namespace tessera::internal
