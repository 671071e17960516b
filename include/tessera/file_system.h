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
/// abandons it: errors are ignored, and the file may be incomplete.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  /// Appends all of `bytes`. After an error any part of them may be there.
  virtual absl::Status write_all(std::string_view bytes) = 0;
  /// Returns once the file's content would survive a power failure; its name would not, see
  /// FileSystem::sync_directory. An error is final: the kernel may have dropped what it could not
  /// write, so that a second call would succeed without it. Give the file up. The default is for
  /// object stores, where close() does that.
  virtual absl::Status sync() { return absl::OkStatus(); }
  /// Called once, and last. An object store puts the object here, whole and atomically: only now do
  /// all ranks see it, and it is durable.
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
  /// The names in a directory, in ascending order. In an object store, where a directory is a
  /// prefix of names: what follows "<path>/", up to the next '/', each once.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& path) = 0;
  /// Describes `path` itself if it is a symbolic link. A store without directories may return
  /// NotFound for them.
  virtual absl::StatusOr<FileEntry> entry(const std::string& path) = 0;
  /// Whether FileSystem::rename() works. If so, it commits a step; otherwise the manifest does, the
  /// last of the step's files to be put.
  virtual bool can_rename() const { return false; }
  /// Locks the file `path`, which must exist, shared with other readers, or exclusively if `alone`;
  /// the file's content stays. Does not wait: FailedPrecondition if it is locked. Unimplemented if
  /// files have no locks.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& /*path*/,
                                                                 bool /*alone*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

/// Where checkpoints are: the files of this machine unless a program injects its own, such as an
/// object store (docs/checkpoints.md has an example). Such a store overrides what has no body here:
/// create(), remove_file(), open(), list() and entry(); everything else has a default for it. All
/// ranks must see at once what one has put or removed, also in list().
///
/// All calls are local and block. They should not throw: an exception counts as an error after
/// which all ranks stop. Any thread may call; two threads use two files. An error names operation
/// and path, and its code counts: NotFound and AlreadyExists for what they say; OutOfRange,
/// DataLoss and FailedPrecondition where a file is damaged, as NotFound is for a file of a step;
/// Unavailable for errors that may pass, after which readers try again. After any other code the
/// step may still be whole, so all ranks stop.
class FileSystem : public ReadableFileSystem {
 public:
  /// Makes the file `path`, which must not exist. A store that cannot tell may replace it instead.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// A store may return OK for a file that does not exist.
  virtual absl::Status remove_file(const std::string& path) = 0;
  /// Copies the file `from` to a new file `to`. The default reads and writes the bytes in this
  /// process: override it where the store copies by itself.
  virtual absl::Status copy_file(const std::string& from, const std::string& to);

  /// Atomic, also for a directory with its content. AlreadyExists if `to` exists, whatever it is.
  /// Called only if can_rename().
  virtual absl::Status rename(const std::string& /*from*/, const std::string& /*to*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no rename");
  }
  /// Makes the directory `path`, which must not exist; its parent exists.
  virtual absl::Status make_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Returns once all changes of names in `path` would survive a power failure.
  virtual absl::Status sync_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Removes an empty directory.
  virtual absl::Status remove_directory(const std::string& /*path*/) { return absl::OkStatus(); }

  /// Locks `path` for this object alone, making it if it is not there, and writes `holder` into it.
  /// Does not wait: FailedPrecondition with what the present holder wrote. Unimplemented if there
  /// are no locks: then the user must ensure that one job at a time saves in a directory.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& /*path*/,
                                                         const std::string& /*holder*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

}  // namespace tessera
