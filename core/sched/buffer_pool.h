#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/memory_meter.h"

namespace tessera::internal {

/// A pool of memory for full units: a free list of equally large buffers per dtype, so that nothing
/// is allocated after the first steps. Used by one thread.
class BufferPool {
 public:
  /// Allocates [numel] elements; usually ProcessGroup::allocate.
  using Allocate = std::function<at::Tensor(int64_t numel, at::ScalarType dtype)>;

  /// What happens to the contents of a released buffer.
  enum class OnRelease : uint8_t {
    kKeep,
    kPoison,  ///< fill with NaN, so that a late read becomes visible
  };

  /// `meter`, which must outlive the pool, counts the bytes as `memory_class`.
  BufferPool(Allocate allocate, MemoryMeter& meter, MemoryClass memory_class, OnRelease on_release);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Makes all buffers of `dtype` at least `numel` long. Call it for every unit before the first
  /// acquire().
  void reserve(at::ScalarType dtype, int64_t numel);

  /// Allocates `count` free buffers of `dtype` now. Call it after the last reserve().
  void fill(at::ScalarType dtype, int64_t count);
  /// Returns the number of free buffers of `dtype`.
  int64_t free_buffers(at::ScalarType dtype) const;

  /// Returns a buffer [numel] of `dtype`, contents undefined. Never waits, because the pool grows
  /// if no buffer is free. `numel` must have been reserved.
  at::Tensor acquire(at::ScalarType dtype, int64_t numel);

  /// Returns to the pool a buffer that acquire() returned.
  void release(const at::Tensor& buffer);

  /// Frees all memory; nothing may be acquired afterwards. The destructor calls it too.
  void close();

  /// Returns the number of buffers made so far, free or in use.
  int64_t buffers() const { return buffers_; }

 private:
  struct FreeList {
    int64_t buffer_numel = 0;
    std::vector<at::Tensor> buffers;  // each of buffer_numel elements
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
