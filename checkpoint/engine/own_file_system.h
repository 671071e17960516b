#pragma once

#include <memory>

#include "tessera/file_system.h"

namespace tessera::internal {

/// A file system of the program's own, as checkpoints call it. It may break the contract without
/// harm to the job: what it throws becomes an error, an error without a text gets one, and names
/// without a character are left out of lists. Paths are passed on without a '/' at their end.
std::shared_ptr<FileSystem> as_called(std::shared_ptr<FileSystem> files);

}  // namespace tessera::internal
