#pragma once

#include <memory>

#include "tessera/file_system.h"

namespace tessera::internal {

/// Wraps a file system that the program provides, so that the job is not harmed if it breaks the
/// contract of FileSystem: exceptions become errors, an error without a text gets one, and empty
/// names are left out of lists. Paths are passed on without a '/' at their end.
std::shared_ptr<FileSystem> as_called(std::shared_ptr<FileSystem> files);

}  // namespace tessera::internal
