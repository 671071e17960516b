#pragma once

#include <cstdint>
#include <memory>

namespace tessera::internal::shm {

/// Shows which pages of a private mapping of a file the system has copied because this process
/// wrote them.
class PageMap {
 public:
  virtual ~PageMap() = default;
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  /// Local. The first page from number `page` on, of `pages` pages at `memory` (a private mapping
  /// of a file), that was copied; `pages` if there is none. Throws c10::Error if the system does
  /// not show it.
  virtual int64_t next_copied(const char* memory, int64_t page, int64_t pages) = 0;

  /// Local. The kernel's own, of this process and not of its children. It is opened now and stays
  /// open, so that it can be read when descriptors have run out. Throws c10::Error if there is
  /// none.
  static std::unique_ptr<PageMap> open();

  static int64_t page_bytes();

 protected:
  PageMap() = default;
};

}  // namespace tessera::internal::shm
