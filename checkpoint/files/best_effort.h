#pragma once

#include <sys/types.h>

#include <string>

#include <absl/status/status.h>

namespace tessera::internal {

// Calls that a save goes on without if the file system refuses them, as CIFS, FAT, vboxsf and some
// FUSE ones do. Each says on stderr what is lost, once per process. Local, blocking, any thread.

/// Runs fsync(2) on the file `fd`. No error if the file system has no such call.
absl::Status fsync_file(int fd, const std::string& path);
/// The same for a directory.
absl::Status fsync_directory(int fd, const std::string& path);

/// Gives `path`, which this process has just made, the permission bits `mode` if it has others
/// because of the umask or the file system. `fd`: the open file; -1: `path` is a directory.
void set_mode(int fd, const std::string& path, mode_t mode);

}  // namespace tessera::internal
