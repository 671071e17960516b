#pragma once

#include <cstdint>

namespace tessera::internal {

/// The number of bytes that one entry of a second-level page table maps, on x86-64 and arm64.
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

/// Visibility of writes to mapped memory.
enum class Writes : uint8_t {
  kShared,   ///< every process that maps the file sees them
  kPrivate,  ///< only this process sees them; a file's pages are copied at the first write
};

/// Maps `bytes` bytes at the start of a huge page. With a file `fd`, touches all its pages at once;
/// with fd -1 and kPrivate, maps zeroed memory that takes pages as they are touched. Unmap exactly
/// [result, result + bytes). Null if there is no space (errno says why). Local.
char* map_on_huge_page(int64_t bytes, int fd, Writes writes);

/// Asks the kernel to take huge pages when [memory, memory + bytes) is first touched. `memory` must
/// begin on a huge page. A remainder smaller than a huge page stays in small pages, so that
/// rounding takes no memory. A refusal only costs speed. Has no effect on shared memory unless the
/// system allows it (/sys/kernel/mm/transparent_hugepage/shmem_enabled). Local.
void use_huge_pages(char* memory, int64_t bytes);

/// Moves the present contents of [memory, memory + bytes), private or shared, into huge pages now,
/// whatever the system's setting; a remainder smaller than a huge page stays where it is. Processes
/// that map the same file at the same alignment get the huge pages too. `memory` must begin on a
/// huge page. A refusal (Linux before 6.1, no contiguous memory) only costs speed. Local, blocking:
/// copies.
void move_into_huge_pages(char* memory, int64_t bytes);

}  // namespace tessera::internal
