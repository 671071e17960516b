#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/file_system.h"

namespace tessera::internal {

/// "[checkpoint] cannot <operation> '<path>': <text of error> (errno <error>)".
absl::Status file_error(int error, std::string_view operation, std::string_view path);
/// Marks `status` as the failure of a system call with errno `error`.
absl::Status with_errno(absl::Status status, int error);
/// Returns that errno; 0 if `status` comes from no system call.
int errno_of(const absl::Status& status);
/// Returns true if the same call may succeed later by itself. False if something is absent, of
/// another kind, forbidden, impossible or used up.
bool is_transient(const absl::Status& status);

/// Returns true if `status` means that a step is damaged, so that an older one may replace it:
/// bytes that were read violate the format, or a file is absent or of another kind. False if the
/// step could not be read (EIO, ESTALE, ...), is forbidden or too new for this reader, or resources
/// are missing: it may be whole.
bool is_damage(const absl::Status& status);
/// Returns true if a lock was refused because it is held.
bool is_held(const absl::Status& status);

/// "/a/b" and "c": "/a/b/c".
std::string join_path(std::string_view directory, std::string_view name);
/// Returns the directory that contains `path`: "." for a bare name.
std::string parent_path(std::string_view path);

/// Returns true if `path` exists, links included; an error if that cannot be known.
absl::StatusOr<bool> exists(ReadableFileSystem& files, const std::string& path);
/// Removes `path` with its content; follows no symbolic links. Goes on after errors and returns the
/// first. No error if `path` does not exist.
absl::Status remove_tree(FileSystem& files, const std::string& path);
/// Copies what is in `from` to `to`, from the last name to the first, up to the first error.
/// Damaged files are left out and named on stderr. For object stores, where no directory has to be
/// made.
absl::Status copy_tree(FileSystem& files, const std::string& from, const std::string& to);

/// `text` from a file or a peer, fit for a message: unprintable bytes escaped, long texts cut.
std::string printable(std::string_view text);

}  // namespace tessera::internal
