#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// Returns the committed steps in the directory of a run, ascending by number. NotFound if there is
/// no such directory.
absl::StatusOr<std::vector<int64_t>> list_steps(ReadableFileSystem& files,
                                                const std::string& directory);

}  // namespace tessera::internal
