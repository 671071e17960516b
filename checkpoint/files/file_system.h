#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace tessera::internal {

/// A file that is being written from its beginning to its end. Destroying it before close() closes
/// it and ignores errors: the file is abandoned then.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  /// Appends all of `bytes`. After an error any part of them may be there.
  virtual absl::Status write_all(std::string_view bytes) = 0;
  /// Returns once the file's content would survive a power failure; its name would not, see
  /// FileSystem::sync_directory. An error is final: the kernel may have dropped what it could not
  /// write, so that a second call would succeed without it. Give the file up.
  virtual absl::Status sync() = 0;
  /// Once, and nothing after it.
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

/// The operations that checkpoints need, and no others, so that tests can put a simulation with
/// failing and crashing disks in their place. Every error names operation, path and errno; its code
/// is that of absl::ErrnoToStatusCode (NotFound, AlreadyExists, PermissionDenied, ...). All calls
/// are local and block. Any thread may call; two threads use two files.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Makes `path`, which must not exist.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// Opens the file `path`; FailedPrecondition where it is a symbolic link or no regular file.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  /// Makes `path`, which must not exist in a directory that does.
  virtual absl::Status make_directory(const std::string& path) = 0;
  /// Returns once all names that were made, renamed and removed in `path` are so after a power
  /// failure, too.
  virtual absl::Status sync_directory(const std::string& path) = 0;
  /// Atomic. AlreadyExists where `to` exists, whatever it is.
  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status remove_file(const std::string& path) = 0;
  /// An empty one.
  virtual absl::Status remove_directory(const std::string& path) = 0;
  /// The names in a directory, in ascending order.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& path) = 0;
  /// Of `path` itself where it is a symbolic link.
  virtual absl::StatusOr<FileEntry> entry(const std::string& path) = 0;
  /// What this user may still write where `path` is; INT64_MAX where nobody knows.
  virtual absl::StatusOr<int64_t> free_bytes(const std::string& path) = 0;

  /// Locks `path` for this object alone, making it if it is not there, and writes `holder` into it.
  /// Does not wait: FailedPrecondition with what the present holder wrote.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                         const std::string& holder) = 0;
  /// Locks the file `path`, which must exist, together with other readers, or, if `alone`, against
  /// them; the file's content stays. Does not wait: FailedPrecondition where that cannot be.
  /// Unimplemented where files have no locks.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                                 bool alone) = 0;
};

/// "[checkpoint] cannot <operation> '<path>': <text of error> (errno <error>)".
absl::Status file_error(int error, std::string_view operation, std::string_view path);
/// `status` as the failure of a system call with errno `error`.
absl::Status with_errno(absl::Status status, int error);
/// That errno; 0 of a status that is of no system call.
int errno_of(const absl::Status& status);
/// Whether the same call may succeed later although nobody does anything: not where something is
/// absent, of another kind, forbidden, impossible or used up.
bool may_pass(const absl::Status& status);

/// Whether a lock was refused because somebody else has it.
bool is_held(const absl::Status& status);

/// "/a/b" and "c": "/a/b/c".
std::string join_path(std::string_view directory, std::string_view name);
/// The directory that has `path`'s last name: "." for a bare name.
std::string parent_path(std::string_view path);

/// Whether `path` exists, links included; an error where that cannot be known.
absl::StatusOr<bool> exists(FileSystem& files, const std::string& path);
/// Removes `path` with all that is in it; follows no symbolic links. Goes on after errors and
/// returns the first. No error if there is nothing.
absl::Status remove_tree(FileSystem& files, const std::string& path);

/// `text` from a file or a peer, fit for a message: what is not printable is escaped, and what is
/// long is cut.
std::string printable(std::string_view text);

}  // namespace tessera::internal
