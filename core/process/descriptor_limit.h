#pragma once

#include <cerrno>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {

/// Process-wide. Lets this process have as many descriptors open as the hard limit allows. Returns
/// whether that is more than before.
bool raise_descriptor_limit();

/// What open() makes: a descriptor, or -1 with errno. Where the soft limit of descriptors is in the
/// way, it is raised, and open() is called again. The descriptor lies above the standard streams.
template <typename Open>
FileDescriptor open_within_limit(Open&& open) {
  int fd = open();
  if (fd < 0 && errno == EMFILE && raise_descriptor_limit()) fd = open();
  return FileDescriptor(above_standard_streams(fd));
}

}  // namespace tessera::internal
