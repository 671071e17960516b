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

/// The shared memory of one rank. Reuses freed blocks. If no free block is large enough, a segment
/// grows by the missing bytes, and by at least 1 MiB if it has room for that. If no segment has
/// room, makes a new one with at least as much room as all earlier segments together, so that many
/// blocks take few descriptors. Thread-safe. Tensors share ownership of the arena, so it may
/// outlive the groups. A child of fork() must not use the arena, except that it may free inherited
/// blocks, which has no effect. See Note [Fork].
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static std::shared_ptr<Arena> create();

  /// Returns a block aligned to a page. Throws c10::Error if there is no space.
  char* allocate(int64_t bytes);
  void free(char* block);

  /// Returns an uninitialised, contiguous 1-d tensor. Its last reference frees the block.
  at::Tensor allocate_tensor(int64_t numel, at::ScalarType dtype);

  /// Returns the location of [data, data + bytes) in shared memory; nullopt if it is not inside
  /// this arena.
  std::optional<SharedRange> find(const void* data, int64_t bytes);

 private:
  Arena() = default;

  struct Block {
    int64_t size_bytes;
    bool used;
  };
  struct Region {
    std::shared_ptr<Segment> segment;
    // By offset; used blocks and holes cover the segment's memory without gaps.
    std::map<int64_t, Block> blocks;

    int64_t memory_bytes() const;
    /// Size of the hole at the end of the memory; 0 if there is none.
    int64_t last_hole_bytes() const;
  };

  char* take(Region& region, int64_t offset, int64_t bytes);
  char* grow(int64_t bytes);
  Region* region_of(const void* data);

  const Origin origin_;
  // In a child of fork(), free() does not lock it, because a thread of the parent may have held it
  // at the fork().
  std::mutex mutex_;
  std::deque<Region> regions_;
  int64_t room_bytes_ = 0;  // sum of the segments' room_bytes()
};

}  // namespace tessera::internal::shm
