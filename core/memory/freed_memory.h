#pragma once

namespace tessera {

/// Gives what malloc holds unused back to the system, and from then on lets malloc keep what is
/// freed. A training step allocates the same tensors again and again; by default glibc returns
/// large ones to the kernel at once and pays a page fault for every 4 KiB of the next one, several
/// percent of a step. Process-wide, for good; does nothing where malloc is not glibc's. Local.
void keep_freed_memory();

/// Moves what the heap holds now into huge pages (MADV_COLLAPSE, Linux 6.1): a second percent or
/// two, of address translations. Stretches with many unused pages are left alone, so it takes
/// hardly more memory. Worth calling once the heap has stopped growing. Blocking for the time of
/// one copy of the heap; does nothing where the kernel cannot do it. Local.
void use_huge_pages_in_heap();

}  // namespace tessera
