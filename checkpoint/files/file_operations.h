#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/file_system.h"

namespace tessera::internal {

/// "[checkpoint] cannot <operation> '<path>': <text of error> (errno <error>)".
absl::Status file_error(int error, std::string_view operation, std::string_view path);
/// `status` as the failure of a system call with errno `error`.
absl::Status with_errno(absl::Status status, int error);
/// That errno; 0 of a status that is of no system call.
int errno_of(const absl::Status& status);
/// Whether the same call may succeed later although nobody does anything: not where something is
/// absent, of another kind, forbidden, impossible or used up.
bool may_pass(const absl::Status& status);

/// Whether an older step may stand in for one that cannot be used because of `status`: where bytes
/// that were read violate the format, or a file is absent or of another kind. Not where the step
/// could not be read (EIO, ESTALE, ...), is forbidden or too new for this reader, or resources are
/// missing: it may be whole.
bool is_damage(const absl::Status& status);
/// Whether a lock was refused because somebody else has it.
bool is_held(const absl::Status& status);

/// "/a/b" and "c": "/a/b/c".
std::string join_path(std::string_view directory, std::string_view name);
/// The directory that has `path`'s last name: "." for a bare name.
std::string parent_path(std::string_view path);

/// Whether `path` exists, links included; an error where that cannot be known.
absl::StatusOr<bool> exists(ReadableFileSystem& files, const std::string& path);
/// Removes `path` with all that is in it; follows no symbolic links. Goes on after errors and
/// returns the first. No error if there is nothing.
absl::Status remove_tree(FileSystem& files, const std::string& path);
/// Makes `to` of what is in `from`, from the last name to the first, up to the first error; what is
/// damaged is left out, and named on stderr. In a store of objects, where no directory has to be
/// made.
absl::Status copy_tree(FileSystem& files, const std::string& from, const std::string& to);

/// `text` from a file or a peer, fit for a message: what is not printable is escaped, and what is
/// long is cut.
std::string printable(std::string_view text);

}  // namespace tessera::internal
