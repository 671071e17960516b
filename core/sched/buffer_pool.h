#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Memory for full units that comes and goes: a free list of equally large buffers per dtype, so
/// that after the first steps nothing is allocated. Used by one thread.
class BufferPool {
 public:
  /// Allocates [numel] elements; usually ProcessGroup::allocate.
  using Allocate = std::function<at::Tensor(int64_t numel, at::ScalarType dtype)>;

  /// What happens to the contents of a buffer that is given back.
  enum class OnRelease : uint8_t {
    kKeep,
    kPoison,  ///< fill with NaN, so that a late read becomes visible
  };

  /// Bytes are counted by `meter`, which must outlive the pool, as `memory_class`.
  BufferPool(Allocate allocate, MemoryMeter& meter, MemoryClass memory_class, OnRelease on_release);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Makes buffers of `dtype` at least `numel` long. Called for every unit before the first
  /// acquire.
  void reserve(at::ScalarType dtype, int64_t numel);

  /// Makes `count` free buffers of `dtype` now. After the last reserve().
  void fill(at::ScalarType dtype, int64_t count);
  /// Free buffers of `dtype`.
  int64_t free_buffers(at::ScalarType dtype) const;

  /// A buffer [numel] of `dtype`, contents undefined. Never waits: the pool grows when no buffer is
  /// free. numel must have been reserved.
  at::Tensor acquire(at::ScalarType dtype, int64_t numel);

  /// Gives back what acquire returned.
  void release(const at::Tensor& buffer);

  /// Gives all memory back; nothing is acquired afterwards. The destructor does it too.
  void close();

  /// Unsharded-parameter buffers made so far, free or in use.
  int64_t buffers() const { return buffers_; }

 private:
  struct FreeList {
    int64_t buffer_numel = 0;
    std::vector<at::Tensor> buffers;  // whole ones
  };

  at::Tensor make(FreeList& free_list, at::ScalarType dtype);

  Allocate allocate_;
  MemoryMeter& meter_;
  MemoryClass memory_class_;
  OnRelease on_release_;
  std::map<at::ScalarType, FreeList> free_lists_;
  int64_t buffers_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal
