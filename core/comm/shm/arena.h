#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::shm {

/// Where a piece of shared memory lies, in words that a peer understands. Plain data: it travels in
/// shared memory.
struct SharedRange {
  uint64_t segment_id = 0;  ///< unique among all segments of a host; 0: no range
  uint64_t offset_bytes = 0;
  uint64_t segment_bytes = 0;
  int32_t pid = 0;  ///< who created the segment
  int32_t fd = -1;  ///< its descriptor in that process
};

/// One memfd mapped into this process. The threads of a process share a single mapping of each
/// segment, whoever asks for it first: two mappings of one memfd blind the thread sanitizer.
class Segment {
 public:
  /// Local. A new segment of `bytes` (rounded up to pages), backed by memory from the start, sealed
  /// against resizing and close-on-exec. Throws c10::Error that names the size if there is no
  /// space.
  static std::shared_ptr<Segment> create(int64_t bytes);

  /// Local. The segment that `range` lies in; its creator must be alive. Throws c10::Error if it
  /// cannot be mapped.
  static std::shared_ptr<Segment> open(const SharedRange& range);

  /// Local. All of the segment that `range` lies in, mapped so that writes stay with this process
  /// (copy on write); unmap it with munmap. Its creator must be alive. Throws as open() does.
  static char* map_privately(const SharedRange& range);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_; }
  uint64_t id() const { return id_; }

  /// How a peer finds byte `offset_bytes` of this segment. Only the creator may ask.
  SharedRange range(int64_t offset_bytes) const;

 private:
  Segment(uint64_t id, int fd, char* data, int64_t size_bytes);

  const uint64_t id_;
  const int pid_;
  const int fd_;
  char* const data_;
  const int64_t size_bytes_;
};

/// The shared memory of one rank. Grows by new segments and reuses freed blocks; thread-safe.
/// Tensors share ownership of the arena, so it outlives the groups if they do.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static std::shared_ptr<Arena> create();

  /// A block aligned to a page. Throws c10::Error that names the size if there is no space.
  char* allocate(int64_t bytes);
  void free(char* block);

  /// Uninitialised, 1-d, contiguous; gives its block back when the last reference goes.
  at::Tensor allocate_tensor(int64_t numel, at::ScalarType dtype);

  /// Where [data, data + bytes) lies, if it is inside this arena.
  std::optional<SharedRange> find(const void* data, int64_t bytes) const;

  /// Bytes of all segments, and of the blocks handed out.
  int64_t reserved_bytes() const;
  int64_t used_bytes() const;

 private:
  Arena() = default;

  struct Block {
    int64_t size_bytes;
    bool used;
  };
  struct Region {
    std::shared_ptr<Segment> segment;
    std::map<int64_t, Block> blocks;  // by offset; they cover the segment without gaps
  };

  char* take(Region& region, int64_t offset, int64_t bytes);
  Region* region_of(const void* data) const;

  mutable std::mutex mutex_;
  std::map<const char*, std::unique_ptr<Region>> regions_;  // by first address
  int64_t reserved_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace tessera::shm
