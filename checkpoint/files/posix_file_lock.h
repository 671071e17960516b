#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Locks the open file `fd` by flock(2), against all others or, unless `alone`, against those that
/// want it alone. The lock ends with the process, however that ends; children of fork() do not keep
/// it. Does not wait: FailedPrecondition, with the file's text as the holder's. Unimplemented where
/// the file system has no locks. `path` is for messages.
absl::StatusOr<std::unique_ptr<FileLock>> flock_file(FileDescriptor fd, bool alone,
                                                     const std::string& path);

/// That `path` is a file of hold_file(), by its text.
absl::Status held_error(const std::string& path);

/// In place of a lock where there is none: a file `path` with the text `holder`, which is removed
/// when the lock is destroyed by the process that made it. It outlives a process that is killed.
/// FailedPrecondition, with that text, where it is there already.
absl::StatusOr<std::unique_ptr<FileLock>> hold_file(FileSystem& files, const std::string& path,
                                                    const std::string& holder);

}  // namespace tessera::internal
