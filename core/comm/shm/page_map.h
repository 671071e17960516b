#pragma once

#include <cstdint>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal::shm {

/// Shows which pages of a private mapping of a file the kernel has copied because this process, and
/// not a child of it, wrote them.
class PageMap {
 public:
  /// It is opened now and stays open, so that it can be read when descriptors have run out. Throws
  /// c10::Error if there is none.
  PageMap();

  /// Local. The first page from number `page` on, of `pages` pages at `memory` (a private mapping
  /// of a file), that was copied; `pages` if there is none. Throws c10::Error if the system does
  /// not show it.
  int64_t next_copied(const char* memory, int64_t page, int64_t pages) const;

  static int64_t page_bytes();

 private:
  const FileDescriptor fd_;
};

}  // namespace tessera::internal::shm
