#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/file_system.h"

namespace tessera::internal {

/// Returns the error "[checkpoint] cannot <operation> '<path>': <text of error> (errno <error>)".
absl::Status file_error(int error, std::string_view operation, std::string_view path);
/// Marks `status` as the failure of a system call with errno `error`.
absl::Status with_errno(absl::Status status, int error);
/// Returns the errno that with_errno() stored in `status`; 0 if there is none.
int errno_of(const absl::Status& status);
/// Returns true if the call that failed with `status` may succeed when it is repeated. Returns
/// false if a file is absent or of another kind, or if the call was forbidden, impossible or short
/// of a resource.
bool is_transient(const absl::Status& status);

/// Returns true if `status` means that a step is damaged, so that an older step may be used
/// instead: bytes that were read violate the format, or a file is absent or of another kind.
/// Returns false if the step may be whole, because reading it failed (EIO, ESTALE, ...), was
/// forbidden or lacked resources, or because its format is too new for this reader.
bool is_damage(const absl::Status& status);
/// Returns true if a lock was refused because another job holds it.
bool is_held(const absl::Status& status);

/// Joins two parts of a path: "/a/b" and "c" give "/a/b/c".
std::string join_path(std::string_view directory, std::string_view name);
/// Returns the directory that contains `path`: "." for a bare name.
std::string parent_path(std::string_view path);

/// Returns true if `path` exists as a file, a directory or a symbolic link, even a broken one; an
/// error if that cannot be known.
absl::StatusOr<bool> exists(ReadableFileSystem& files, const std::string& path);
/// Reads the first `bytes` bytes of `file` piece by piece and calls `take` with each piece, up to
/// the first error of either.
absl::Status read_pieces(ReadableFile& file, int64_t bytes,
                         const std::function<absl::Status(std::string_view)>& take);
/// Removes `path` with its content; follows no symbolic links. Goes on after errors and returns the
/// first. No error if `path` does not exist.
absl::Status remove_tree(FileSystem& files, const std::string& path);
/// Copies the content of `from` to `to`, in descending order of names, up to the first error.
/// Damaged files are left out and named on stderr. For object stores only, because it makes no
/// directories.
absl::Status copy_tree(FileSystem& files, const std::string& from, const std::string& to);

/// Returns `text`, which comes from a file or a peer, in a form fit for a message: unprintable
/// bytes are escaped and long texts are cut.
std::string printable(std::string_view text);

}  // namespace tessera::internal
