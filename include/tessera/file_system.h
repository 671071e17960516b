#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace tessera {

/// A file that is being written from its beginning to its end. Destroying it before close()
/// abandons it: errors are ignored, and what is there of it is of no use.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  /// Appends all of `bytes`. After an error any part of them may be there.
  virtual absl::Status write_all(std::string_view bytes) = 0;
  /// Returns once the file's content would survive a power failure; its name would not, see
  /// FileSystem::sync_directory. An error is final: the kernel may have dropped what it could not
  /// write, so that a second call would succeed without it. Give the file up. The default is for
  /// stores of objects, where close() does that.
  virtual absl::Status sync() { return absl::OkStatus(); }
  /// Once, and nothing after it. A store of objects puts the object here, whole and at once: now
  /// and not earlier all ranks see it, and it is durable.
  virtual absl::Status close() = 0;
};

/// A file that is read, anywhere in it.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  /// Fills `to` with the bytes from `offset` on. OutOfRange where the file ends earlier.
  virtual absl::Status read(int64_t offset, absl::Span<char> to) = 0;
};

/// A lock on a file, held until this is destroyed or, where files have locks, the process ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// What a name in a directory stands for.
struct FileEntry {
  enum class Kind : uint8_t { kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kFile;
  int64_t bytes = 0;  ///< of a file
};

/// What readers of checkpoints need of a file system.
class ReadableFileSystem {
 public:
  virtual ~ReadableFileSystem() = default;

  /// Opens the file `path`; FailedPrecondition where it is a symbolic link or no regular file.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  /// The names in a directory, in ascending order. In a store of objects, where a directory is what
  /// names of objects begin with: what follows upon "<path>/", up to the next '/', each once.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& path) = 0;
  /// Of `path` itself where it is a symbolic link. A store without directories may say NotFound of
  /// them.
  virtual absl::StatusOr<FileEntry> entry(const std::string& path) = 0;
  /// Whether FileSystem::rename() is there, by which a step is committed; where it is not, a step
  /// is committed by its manifest, the last of its files to be put.
  virtual bool can_rename() const { return false; }
  /// Locks the file `path`, which must exist, together with other readers, or, if `alone`, against
  /// them; the file's content stays. Does not wait: FailedPrecondition where that cannot be.
  /// Unimplemented where files have no locks.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& /*path*/,
                                                                 bool /*alone*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

/// Where checkpoints are: the files of this machine unless a program injects its own, such as a
/// store of objects (docs/checkpoints.md has an example). Such a store overrides what has no body
/// here: create(), remove_file(), open(), list() and entry(); everything else has a default for it.
/// What one rank has put or removed all ranks see at once, also in list().
///
/// All calls are local and block. None throws: an exception counts as an error of the kind after
/// which all ranks stop. Any thread may call; two threads use two files. An error names operation
/// and path, and its code counts: NotFound and AlreadyExists for what they say; OutOfRange,
/// DataLoss and FailedPrecondition where a file is damaged, as NotFound is for a file of a step;
/// Unavailable for what may pass, which readers try again. By any other code a step may be whole:
/// all ranks stop.
class FileSystem : public ReadableFileSystem {
 public:
  /// Makes `path`, which must not exist. A store that cannot tell may replace it instead.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// A store may say that it removed what is not there.
  virtual absl::Status remove_file(const std::string& path) = 0;
  /// Makes a file `to`, which does not exist, of what is in the file `from`. The default reads and
  /// writes the bytes in this process: override it where the store copies by itself.
  virtual absl::Status copy_file(const std::string& from, const std::string& to);

  /// Atomic, also of a directory with what is in it. AlreadyExists where `to` exists, whatever it
  /// is. Called only where can_rename().
  virtual absl::Status rename(const std::string& /*from*/, const std::string& /*to*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no rename");
  }
  /// Makes `path`, which must not exist in a directory that does.
  virtual absl::Status make_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Returns once all names that were made, renamed and removed in `path` are so after a power
  /// failure, too.
  virtual absl::Status sync_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// An empty one.
  virtual absl::Status remove_directory(const std::string& /*path*/) { return absl::OkStatus(); }

  /// Locks `path` for this object alone, making it if it is not there, and writes `holder` into it.
  /// Does not wait: FailedPrecondition with what the present holder wrote. Unimplemented where
  /// there are no locks: then it is the user who sees to it that one job at a time saves in a
  /// directory.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& /*path*/,
                                                         const std::string& /*holder*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

}  // namespace tessera
