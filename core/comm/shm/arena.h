#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/shm/segment.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal::shm {

/// The shared memory of one rank. A segment grows by the missing bytes, at least 1 MiB if it has
/// room for that. A new segment has at least as much room as all earlier segments together, so that
/// many blocks take few descriptors. Reuses freed blocks. Thread-safe. Tensors share ownership of
/// the arena, so it may outlive the groups. A child of fork() may free inherited blocks, which has
/// no effect, and do nothing else. See Note [Fork].
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static std::shared_ptr<Arena> create();

  /// Returns a block aligned to a page. Throws c10::Error if there is no space, or in a child.
  char* allocate(int64_t bytes);
  void free(char* block);

  /// Returns an uninitialised, contiguous 1-d tensor. Its last reference frees the block.
  at::Tensor allocate_tensor(int64_t numel, at::ScalarType dtype);

  /// Returns where [data, data + bytes) lies, if it is inside this arena.
  std::optional<SharedRange> find(const void* data, int64_t bytes);

 private:
  Arena() = default;

  struct Block {
    int64_t size_bytes;
    bool used;
  };
  struct Region {
    std::shared_ptr<Segment> segment;
    std::map<int64_t, Block> blocks;  // by offset; they cover the segment's memory without gaps

    int64_t memory_bytes() const;
    /// Size of the hole at the end of the memory; 0 if there is none.
    int64_t last_hole_bytes() const;
  };

  char* take(Region& region, int64_t offset, int64_t bytes);
  char* grow(int64_t bytes);
  Region* region_of(const void* data);

  const Origin origin_;
  std::mutex mutex_;  // not taken in a child: a thread of the parent may hold it
  std::deque<Region> regions_;
  int64_t room_bytes_ = 0;  // sum over all segments
};

}  // namespace tessera::internal::shm
