#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Locks the open file `fd` by flock(2), exclusively if `alone`, else shared. The lock ends with
/// the process, however that ends; children of fork() do not keep it. Does not wait:
/// FailedPrecondition, with the file's text as the holder's. Unimplemented if the file system has
/// no locks. `path` is for messages.
absl::StatusOr<std::unique_ptr<FileLock>> flock_file(FileDescriptor fd, bool alone,
                                                     const std::string& path);

/// Returns the error that `path`, a file of hold_file(), exists, with its text.
absl::Status held_error(const std::string& path);

/// Replaces a lock where there are none: makes a file `path` with the text `holder`, which is
/// removed when the process that made it destroys the lock. The file outlives a process that is
/// killed. FailedPrecondition, with the file's text, if it exists already.
absl::StatusOr<std::unique_ptr<FileLock>> hold_file(FileSystem& files, const std::string& path,
                                                    const std::string& holder);

}  // namespace tessera::internal
