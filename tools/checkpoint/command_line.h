#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// Runs tessera-checkpoint with `arguments`. Returns the exit code: 0; 1 if steps are damaged or
/// differ; 2 if that cannot be determined, and after other errors; 64 for an invalid command line.
/// Errors go to `err`.
int run_checkpoint_command(FileSystem& files, const std::vector<std::string>& arguments,
                           std::FILE* out, std::FILE* err);

}  // namespace tessera::internal
