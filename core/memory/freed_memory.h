#pragma once

#include <chrono>
#include <cstdint>

namespace tessera::internal {

/// Makes the process keep the memory that it frees. If `unused_bytes`, which the caller has freed,
/// are a huge page or more, first returns unused memory to the system (this walks through all
/// heaps). A training step allocates the same tensors again and again; by default glibc returns a
/// large one to the kernel at once, and the next one costs a page fault for every 4 KiB, together
/// several percent of the time of a step. From now on CPU tensors of 64 KiB and more come from a
/// BlockHeap, which becomes LibTorch's CPU allocator unless the user has set one, and malloc keeps
/// the memory that is freed to it (only if it is glibc's malloc). Reserves a range of addresses as
/// large as the machine's memory, but no memory. If the system refuses the range (ulimit -v),
/// tensors stay in malloc's heap, as they do under the address sanitizer. Process-wide and
/// permanent. Local.
void keep_freed_memory(int64_t unused_bytes);

/// Moves the present contents of malloc's heap and the block heap into huge pages (MADV_COLLAPSE,
/// Linux 6.1), which saves another percent or two of a step in address translations. Skips
/// stretches with many unused pages, so it takes hardly more memory. Call it when the heaps have
/// stopped growing; a later call moves later growth, unless it lies in huge pages from its first
/// touch. Runs for about `at_most`, but moves at least one huge page; the next call continues
/// there. After keep_freed_memory() has returned memory, everything is moved again. Returns true if
/// nothing is left to do, also if the kernel cannot do it. Local.
bool use_huge_pages_in_heap(std::chrono::nanoseconds at_most);

/// Decides when a training loop should call use_huge_pages_in_heap().
///
/// Note [Huge pages of the heap]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// On a virtual machine, the first touch of a huge page is slow if no guest has used that memory
/// for a long time, because the host must provide it first. We measured 1.7 ms per MiB, against
/// 0.35 ms for small pages, because the guest takes small pages from memory that it has used just
/// before. A first step that takes its activations in huge pages spends a third of its time on
/// these first touches, and moving all activations after the second step would only spend that time
/// later. So the heap grows in small pages, and from the second step on each step spends 1/kShare
/// of its time on moving until everything is moved.
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
