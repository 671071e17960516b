#pragma once

#include <sys/types.h>

#include <string>

#include <absl/status/status.h>

namespace tessera::internal {

// What a save asks of a file system and goes on without where it is refused, as CIFS, FAT, vboxsf
// and some of FUSE do. Each says on stderr what is lost, once per process. Local, blocking, from
// any thread.

/// fsync(2) of the file `fd`, without an error where the file system has no such call.
absl::Status fsync_file(int fd, const std::string& path);
/// The same of a directory.
absl::Status fsync_directory(int fd, const std::string& path);

/// Gives `path`, which this process has just made, the permission bits `mode`, if the umask or the
/// file system has given it others. `fd`: the open file; -1: `path` is a directory.
void set_mode(int fd, const std::string& path, mode_t mode);

}  // namespace tessera::internal
