#include "tessera/core/sched/buffer_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

BufferPool::BufferPool(Allocate allocate, MemoryMeter& meter, MemoryClass memory_class,
                       OnRelease on_release)
    : allocate_(std::move(allocate)),
      meter_(meter),
      memory_class_(memory_class),
      on_release_(on_release) {}

BufferPool::~BufferPool() { close(); }

void BufferPool::close() {
  if (bytes_ > 0) meter_.remove(memory_class_, bytes_);
  bytes_ = 0;
  free_lists_.clear();
}

void BufferPool::reserve(at::ScalarType dtype, int64_t numel) {
  FreeList& free_list = free_lists_[dtype];
  TORCH_INTERNAL_ASSERT(buffers_ == 0, "buffers exist already");
  free_list.buffer_numel = std::max(free_list.buffer_numel, numel);
}

at::Tensor BufferPool::make(FreeList& free_list, at::ScalarType dtype) {
  at::Tensor buffer = allocate_(free_list.buffer_numel, dtype);
  const auto unsharded_bytes = static_cast<int64_t>(buffer.nbytes());
  meter_.add(memory_class_, unsharded_bytes);
  bytes_ += unsharded_bytes;
  ++buffers_;
  free_list.buffers.reserve(static_cast<size_t>(buffers_));  // so that release never allocates
  return buffer;
}

void BufferPool::fill(at::ScalarType dtype, int64_t count) {
  FreeList& free_list = free_lists_[dtype];
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor buffer = make(free_list, dtype);
    free_list.buffers.push_back(std::move(buffer));
  }
}

int64_t BufferPool::free_buffers(at::ScalarType dtype) const {
  const auto free_list = free_lists_.find(dtype);
  return free_list == free_lists_.end() ? 0
                                        : static_cast<int64_t>(free_list->second.buffers.size());
}

at::Tensor BufferPool::acquire(at::ScalarType dtype, int64_t numel) {
  FreeList& free_list = free_lists_[dtype];
  TORCH_INTERNAL_ASSERT(numel <= free_list.buffer_numel, "a buffer of ", numel,
                        " was not reserved");
  at::Tensor buffer;
  if (free_list.buffers.empty()) {
    buffer = make(free_list, dtype);
  } else {
    buffer = std::move(free_list.buffers.back());
    free_list.buffers.pop_back();
  }
  return buffer.narrow(0, 0, numel);
}

void BufferPool::release(const at::Tensor& buffer) {
  FreeList& free_list = free_lists_[buffer.scalar_type()];
  at::Tensor whole = buffer.as_strided({free_list.buffer_numel}, {1}, 0);
  if (on_release_ == OnRelease::kPoison) {
    whole.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  free_list.buffers.push_back(std::move(whole));
}

}  // namespace tessera::internal
