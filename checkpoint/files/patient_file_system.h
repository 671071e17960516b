#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/files/file_system.h"

namespace tessera::internal {

/// Another file system, of which calls that read are made again, after pauses, where they have
/// failed with an error that may pass (may_pass()): a server that is away, a cache that is out of
/// date. Says so on stderr, once for each call. Calls that write are made once: what they have done
/// is not known.
class PatientFileSystem final : public FileSystem {
 public:
  /// `files` must outlive this. A call fails once `patience` has gone by since its first failure.
  explicit PatientFileSystem(FileSystem& files,
                             std::chrono::milliseconds patience = std::chrono::seconds(10))
      : files_(files), patience_(patience) {}

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

 private:
  FileSystem& files_;
  const std::chrono::milliseconds patience_;
};

}  // namespace tessera::internal
