#pragma once

#include <cerrno>

namespace tessera::internal {

/// Returns true if errno `error` says that a file system does not have the call that was made, or
/// not with these arguments. Some answer so to an fsync of a directory, or to a flag of renameat2.
inline bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace tessera::internal
