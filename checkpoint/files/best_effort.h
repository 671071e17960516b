#pragma once

#include <sys/types.h>

#include <string>

#include <absl/status/status.h>

namespace tessera::internal {

// System calls that some file systems refuse (CIFS, FAT, vboxsf, some FUSE file systems). A save
// goes on without them. Each function says on stderr what is lost, once per process. Local,
// blocking, any thread.

/// Runs fsync(2) on the file `fd`. No error if the file system has no such call.
absl::Status fsync_file(int fd, const std::string& path);
/// Runs fsync(2) on the directory `fd`. No error if the file system has no such call.
absl::Status fsync_directory(int fd, const std::string& path);

/// Sets the permission bits of `path`, which this process has just made, to `mode` if the umask or
/// the file system has given it other bits. `fd`: the open file, or -1 if `path` is a directory.
void set_mode(int fd, const std::string& path, mode_t mode);

}  // namespace tessera::internal
