#pragma once

#include <chrono>
#include <cstdint>

namespace tessera::internal {

/// Makes the process keep the memory that it frees. If `unused_bytes`, which the caller has freed,
/// are a huge page or more, first returns unused memory to the system (finding it walks through all
/// heaps). A training step allocates the same tensors again and again; by default glibc returns
/// large ones to the kernel at once and pays a page fault for every 4 KiB of the next one, several
/// percent of a step. From now on CPU tensors of 64 KiB and more come from a BlockHeap, which
/// becomes LibTorch's CPU allocator unless the user has set one, and malloc keeps the memory freed
/// to it (no effect if malloc is not glibc's). Reserves as many addresses, not memory, as the
/// machine has memory; if they are refused (ulimit -v), tensors stay in malloc's heap, as they do
/// under the address sanitizer. Process-wide and permanent. Local.
void keep_freed_memory(int64_t unused_bytes);

/// Moves the present contents of malloc's heap and the block heap into huge pages (MADV_COLLAPSE,
/// Linux 6.1), which saves another percent or two of a step in address translations. Skips
/// stretches with many unused pages, so it takes hardly more memory. Call it when the heaps have
/// stopped growing; a later call moves later growth, unless it lies in huge pages from its first
/// touch. Runs for about `at_most` (at least one huge page), and the next call continues; after
/// keep_freed_memory() has returned memory, everything is moved again. Returns true if nothing is
/// left to do, also if the kernel cannot do it. Local.
bool use_huge_pages_in_heap(std::chrono::nanoseconds at_most);

/// Decides when a training loop should call use_huge_pages_in_heap().
///
/// Note [Huge pages of the heap]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// On a virtual machine, the host must back a huge page that no guest has used for long with memory
/// at the first touch. We measured 1.7 ms per MiB, against 0.35 for small pages, which the guest
/// has used just before. A first step that takes its activations in huge pages spends a third of
/// its time there, and moving all of them after the second step only delays that. So the heap grows
/// in small pages, and from the second step on each step spends 1/kShare of its time on moving
/// until everything is moved.
class HugePagePace {
 public:
  static constexpr int kShare = 25;

  /// Call it after each step. Local.
  void after_step();
  bool is_done() const { return is_done_; }

 private:
  std::chrono::steady_clock::time_point last_;
  int64_t steps_ = 0;
  bool is_done_ = false;
};

}  // namespace tessera::internal
