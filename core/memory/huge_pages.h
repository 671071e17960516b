#pragma once

#include <cstdint>

namespace tessera::internal {

/// What one entry of the second level of page tables covers, on x86-64 and arm64.
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

/// Who sees what is written to mapped memory.
enum class Writes : uint8_t {
  kShared,   ///< all who map the file
  kPrivate,  ///< this process only; pages of a file are copied at the first write
};

/// Local. Maps `bytes` so that they begin on a huge page: of file `fd`, all its pages touched at
/// once, or, for fd -1 and kPrivate, zeroed memory that takes pages as they are touched. Unmap
/// exactly [result, result + bytes). Null if there is no space (errno says why).
char* map_on_huge_page(int64_t bytes, int fd, Writes writes);

/// Local. Asks for the whole huge pages of [memory, memory + bytes), which map_on_huge_page()
/// returned, to be taken as such at the first touch. The rest stays in small pages, so that no
/// memory is spent on rounding. A refusal costs speed only. Without effect on shared memory unless
/// the system was told so (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
void use_huge_pages(char* memory, int64_t bytes);

/// Local, blocking: copies. Moves the whole huge pages of [memory, memory + bytes), which have
/// memory already, private or shared, into huge pages now, whatever the system prefers. Processes
/// that map the same file at the same alignment get them too. `memory` begins on a huge page. A
/// refusal (Linux before 6.1, no contiguous memory) costs speed only.
void move_into_huge_pages(char* memory, int64_t bytes);

}  // namespace tessera::internal
