#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/step/verified_file.h"

namespace tessera::internal {

/// Reads a committed step. Every error names the file, what was found and what was expected:
/// DataLoss if the step is damaged, NotFound if there is none, else the file system's error. While
/// this object lives, no job deletes the step (lock_content). Local; belongs to one thread.
class StepReader {
 public:
  /// Opens the step `path`, "<directory of the run>/step-<N>": verifies the manifest and that the
  /// directory has the manifest's files, each a regular file that has the listed length and a
  /// header of this save. Values are verified when they are read. `files` must outlive this.
  static absl::StatusOr<std::unique_ptr<StepReader>> open(ReadableFileSystem& files,
                                                          const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// Returns the names of up to 5 files in the directory that are not the step's, such as
  /// "'eval.json', '.nfs01'"; "" if there are none. Does not read these files.
  std::string strays_text() const;

  /// Fills `to` with elements of the entry `name` from `begin` on, in the entry's memory order.
  /// Reads and verifies only the blocks that hold these elements. On an error `to` may hold bad
  /// bytes.
  absl::Status read(const std::string& name, int64_t begin, absl::Span<char> to);

  /// Verifies every byte of the file that rank `rank` of the save wrote. Ranks can share the work
  /// by taking different files. `on_block` is called with the bytes of each block.
  absl::Status verify_file(int64_t rank, const std::function<void(int64_t bytes)>& on_block = {});
  /// Verifies every byte of the step.
  absl::Status verify_all(const std::function<void(int64_t bytes)>& on_block = {});

 private:
  /// A file that is open, and when it was used last.
  struct OpenFile {
    std::unique_ptr<VerifiedFile> file;
    int64_t used = 0;
  };

  StepReader(ReadableFileSystem& files, std::string path, std::unique_ptr<FileLock> lock);

  absl::Status read_manifest();
  absl::Status check_names();
  absl::Status check_header(int64_t rank);
  absl::StatusOr<VerifiedFile*> file_of(int64_t rank);

  ReadableFileSystem& files_;
  const std::string path_;
  const std::unique_ptr<FileLock> lock_;  // null if the file system has no locks
  Manifest manifest_;
  std::vector<std::string> strays_;
  std::map<int64_t, OpenFile> open_files_;
  int64_t uses_ = 0;
};

}  // namespace tessera::internal
