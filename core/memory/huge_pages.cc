#include "tessera/core/memory/huge_pages.h"

#include <sys/mman.h>

#include "tessera/core/numbers/round_up.h"

namespace tessera::internal {
namespace {

#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1; missing in older C libraries
#endif

int64_t whole_huge_pages(int64_t bytes) { return bytes / kHugePageBytes * kHugePageBytes; }

}  // namespace

char* map_on_huge_page(int64_t bytes, int fd, Writes writes) {
  const int64_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<char*>(reserved);
  char* const end = begin + reserved_bytes;
  char* const memory = round_up(begin, kHugePageBytes);
  const int kind = writes == Writes::kShared ? MAP_SHARED | MAP_POPULATE
                                             : MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0);
  const bool is_mapped =
      ::mmap(memory, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (!is_mapped) {
    ::munmap(begin, reserved_bytes);
    return nullptr;
  }
  // A private mapping of a file is touched by reading, because MAP_POPULATE would copy every page.
  if (writes == Writes::kPrivate && fd >= 0) ::madvise(memory, bytes, MADV_POPULATE_READ);
  if (memory > begin) ::munmap(begin, memory - begin);
  if (end > memory + bytes) ::munmap(memory + bytes, end - (memory + bytes));
  return memory;
}

void use_huge_pages(char* memory, int64_t bytes) {
  ::madvise(memory, whole_huge_pages(bytes), MADV_HUGEPAGE);
}

void move_into_huge_pages(char* memory, int64_t bytes) {
  if (bytes >= kHugePageBytes) ::madvise(memory, whole_huge_pages(bytes), MADV_COLLAPSE);
}

}  // namespace tessera::internal
