#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// What tessera-checkpoint does for `arguments`. Returns the exit code: 0; 1 where steps are
/// damaged or differ; 2 where that cannot be known, and after other errors; 64 for a command line
/// that is none. Errors go to `err`.
int run_checkpoint_command(FileSystem& files, const std::vector<std::string>& arguments,
                           std::FILE* out, std::FILE* err);

}  // namespace tessera::internal
