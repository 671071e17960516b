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

  /// Appends all of `bytes`. After an error the file may have any part of them.
  virtual absl::Status write_all(std::string_view bytes) = 0;
  /// Returns once the file's content would survive a power failure; the file's name needs
  /// FileSystem::sync_directory(), too. After an error give the file up, and do not call sync()
  /// again: the kernel may have dropped what it could not write, so a second call could succeed
  /// although that part is lost. The default is for object stores, where close() makes the file
  /// durable.
  virtual absl::Status sync() { return absl::OkStatus(); }
  /// Called once, and last. An object store stores the object in this call, whole and atomically:
  /// from then on all ranks see it, and it is durable.
  virtual absl::Status close() = 0;
};

/// A file that is read, at any offset.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  /// Fills `to` with the bytes from `offset` on. Returns OutOfRange if the file ends earlier.
  virtual absl::Status read(int64_t offset, absl::Span<char> to) = 0;
};

/// A lock on a file. It is released when this object is destroyed and, where files have locks, also
/// when the process ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// The kind and size of an entry of a directory.
struct FileEntry {
  enum class Kind : uint8_t { kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kFile;
  int64_t bytes = 0;  ///< size of a file
};

/// The part of a file system that readers of checkpoints use.
class ReadableFileSystem {
 public:
  virtual ~ReadableFileSystem() = default;

  /// Opens the file `path`. Returns FailedPrecondition if it is a symbolic link or not a regular
  /// file.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  /// Returns the names in a directory, in ascending order. In an object store, where a directory is
  /// a prefix of names, returns the parts of names between "<path>/" and the next '/', each once.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& path) = 0;
  /// Returns the kind and size of `path`; for a symbolic link those of the link itself. A store
  /// without directories may return NotFound for a directory.
  virtual absl::StatusOr<FileEntry> entry(const std::string& path) = 0;
  /// Returns true if FileSystem::rename() works. Then a rename commits a step; otherwise the step's
  /// last file, the manifest, commits it.
  virtual bool can_rename() const { return false; }
  /// Locks the file `path`, which must exist: exclusively if `alone`, else shared with other
  /// readers. The file's content stays. Does not wait: returns FailedPrecondition if the file is
  /// locked. Returns Unimplemented if files have no locks.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& /*path*/,
                                                                 bool /*alone*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

/// The file system of checkpoints: this machine's, unless a program injects its own, such as an
/// object store (docs/checkpoints.md has an example). An object store overrides the functions that
/// have no body here: create(), remove_file(), open(), list() and entry(). The other functions have
/// defaults that fit an object store. If one rank has put or removed a file, all ranks must see
/// that immediately, in list() too.
///
/// All calls are local and block. They should not throw: an exception counts as an error after
/// which all ranks stop. Calls come from any thread, but no two threads use the same file. An
/// error's text names operation and path. Its code matters: NotFound and AlreadyExists have their
/// usual meaning; OutOfRange, DataLoss and FailedPrecondition mean that a file is damaged, and so
/// does NotFound for a file of a step; Unavailable means that readers should try again. After any
/// other code the step may still be whole, so all ranks stop.
class FileSystem : public ReadableFileSystem {
 public:
  /// Makes the file `path`, which must not exist. An object store that cannot tell whether it
  /// exists may replace it instead.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// Removes the file `path`. A store may return OK for a file that does not exist.
  virtual absl::Status remove_file(const std::string& path) = 0;
  /// Copies the file `from` to a new file `to`. The default reads and writes the bytes in this
  /// process: override it where the store copies by itself.
  virtual absl::Status copy_file(const std::string& from, const std::string& to);

  /// Renames a file or a directory with its content, atomically. Returns AlreadyExists if there is
  /// anything called `to`. Called only if can_rename().
  virtual absl::Status rename(const std::string& /*from*/, const std::string& /*to*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no rename");
  }
  /// Makes the directory `path`, which must not exist; its parent exists.
  virtual absl::Status make_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Returns once all changes of names in `path` would survive a power failure.
  virtual absl::Status sync_directory(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Removes an empty directory.
  virtual absl::Status remove_directory(const std::string& /*path*/) { return absl::OkStatus(); }

  /// Makes the file `path` if it does not exist, locks it exclusively, and writes `holder` into it.
  /// Does not wait: if it is locked already, returns FailedPrecondition with the text of the
  /// present holder. Returns Unimplemented if there are no locks: then the user must ensure that
  /// only one job at a time saves in a directory.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& /*path*/,
                                                         const std::string& /*holder*/) {
    return absl::UnimplementedError("[checkpoint] this file system has no locks");
  }
};

}  // namespace tessera
