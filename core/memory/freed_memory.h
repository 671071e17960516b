#pragma once

#include <cstdint>

namespace tessera::internal {

/// Makes the process keep the memory that it frees, after returning what is unused now if the
/// caller has freed a huge page or more, `unused_bytes` (finding it walks through all heaps). A
/// training step allocates the same tensors again and again; by default glibc returns large ones to
/// the kernel at once and pays a page fault for every 4 KiB of the next one, several percent of a
/// step. From now on CPU tensors of 64 KiB and more come from a BlockHeap, which becomes LibTorch's
/// allocator for the CPU unless the user has set one, and malloc keeps what is freed there (which
/// does nothing where malloc is not glibc's). Reserves addresses, not memory, as many as the
/// machine has memory; where they are refused (ulimit -v), tensors stay in malloc's heap.
/// Process-wide and permanent. Under the address sanitizer tensors stay in malloc's heap. Local.
void keep_freed_memory(int64_t unused_bytes);

/// Moves what these heaps hold now into huge pages (MADV_COLLAPSE, Linux 6.1): a second percent or
/// two, of address translations. Stretches with many unused pages are left alone, so it takes
/// hardly more memory. Worth calling once they have stopped growing; a later call moves what they
/// have grown by, or all again after keep_freed_memory() has returned some. Blocking for the time
/// of one copy of them; does nothing where the kernel cannot do it. Local.
void use_huge_pages_in_heap();

}  // namespace tessera::internal
