#pragma once

#include <string>

#include <absl/status/statusor.h>

namespace tessera::internal {

/// Makes a new directory with mode 0700 under $TMPDIR, or /tmp if that is not set, and returns its
/// absolute path without symbolic links. No two calls return the same. Errors: Unavailable, naming
/// the place and the system's reason.
absl::StatusOr<std::string> create_store_directory();

/// Removes it with all that is in it; follows no symbolic link. It may be gone already.
void remove_store_directory(const std::string& directory);

}  // namespace tessera::internal
