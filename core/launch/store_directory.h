#pragma once

#include <string>

#include <absl/status/statusor.h>

namespace tessera::internal {

/// Makes a new directory with mode 0700 under $TMPDIR, or under /tmp if that is not set. Returns
/// its absolute path without symbolic links. No two calls return the same path. Errors:
/// Unavailable, naming the parent directory and the system's reason.
absl::StatusOr<std::string> create_store_directory();

/// Removes `directory` with all its contents; follows no symbolic link. It may already be gone.
void remove_store_directory(const std::string& directory);

}  // namespace tessera::internal
