#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Locks the open file `fd` by flock(2), exclusively if `alone`, else shared. The lock ends when
/// the process ends, for whatever reason; children of fork() do not keep it. Does not wait: if the
/// lock is held, returns FailedPrecondition with the file's text, which describes the holder.
/// Unimplemented if the file system has no locks. `path` is for messages.
absl::StatusOr<std::unique_ptr<FileLock>> flock_file(FileDescriptor fd, bool alone,
                                                     const std::string& path);

/// Returns the error that hold_file() gives if the file `path` exists already, with the file's
/// text.
absl::Status held_error(const std::string& path);

/// Replaces flock_file() on file systems without locks: creates the file `path` with the text
/// `holder`. The process that created the file removes it when it destroys the lock; if that
/// process is killed, the file stays. FailedPrecondition, with the file's text, if the file exists
/// already.
absl::StatusOr<std::unique_ptr<FileLock>> hold_file(FileSystem& files, const std::string& path,
                                                    const std::string& holder);

}  // namespace tessera::internal
