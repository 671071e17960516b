#pragma once

#include <cerrno>

namespace tessera::internal {

/// Returns true if errno `error` says that the file system does not support the call or its
/// arguments. Some file systems return such errors for an fsync of a directory, or for a flag of
/// renameat2.
inline bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace tessera::internal
