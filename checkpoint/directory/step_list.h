#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// The committed steps in the directory of a run, ascending. By number: no clock is asked. NotFound
/// where there is no such directory.
absl::StatusOr<std::vector<int64_t>> list_steps(ReadableFileSystem& files,
                                                const std::string& directory);

/// Whether an older step may stand in for one that cannot be used because of `status`: where bytes
/// that were read violate the format, or a file is absent or of another kind. Not where the step
/// could not be read (EIO, ESTALE, ...), is forbidden or too new for this reader, or resources are
/// missing: it may be whole.
bool is_damage(const absl::Status& status);

}  // namespace tessera::internal
