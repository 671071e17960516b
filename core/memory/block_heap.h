#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// A heap of blocks of any size in one contiguous address range, which grows and never shrinks:
/// freed memory is reused without a page fault. First fit at the lowest address; adjacent free
/// blocks are merged. So a training step, whose blocks are freed in about the reverse order of
/// their allocation, holds only a few percent more than it uses at its peak. (malloc holds much
/// more: glibc 2.36 searches for a chunk of size plus alignment and splits off the rest, so a freed
/// tensor's chunk does not fit the same request again.) Meant for large blocks, because each takes
/// 64 bytes more, and the search is linear in the number of holes. Thread-safe.
class BlockHeap {
 public:
  /// Reserves addresses, not memory. If the reservation is refused, every allocate() fails.
  explicit BlockHeap(int64_t reserved_bytes);
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  /// Returns a block aligned to 64 bytes, contents undefined. Null if the addresses are used up or
  /// the system refuses memory.
  char* allocate(int64_t bytes);

  /// Lets children of fork() use this heap, which must never be destroyed. Local.
  void hold_across_forks() { hold_across_fork(mutex_); }

  /// Frees `block`, which came from allocate().
  void free(char* block);

  /// Returns true if `memory` lies in the reserved addresses.
  bool contains(const void* memory) const;

  /// Returns empty huge pages to the system.
  void give_back();

  /// From now on, when the heap grows, asks the system to back the new memory with huge pages at
  /// its first touch, if the system provides them.
  void grow_in_huge_pages();

  /// All blocks, free or not, lie in grown_bytes() bytes from begin() on; that range never shrinks.
  char* begin() const { return begin_; }
  int64_t grown_bytes() const;

 private:
  struct Hole {
    char* begin;
    int64_t bytes;
  };

  char* grow(int64_t bytes);
  void add_hole(Hole hole);

  mutable std::mutex mutex_;
  void* reserved_ = nullptr;
  int64_t reserved_bytes_ = 0;
  char* begin_ = nullptr;     ///< where the blocks begin, at the start of a huge page
  char* end_ = nullptr;       ///< end of all blocks
  char* writable_ = nullptr;  ///< memory is writable up to here
  char* limit_ = nullptr;
  std::vector<Hole> holes_;  ///< by address; no two touch
};

}  // namespace tessera::internal
