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
  shelves_.clear();
}

void BufferPool::reserve(at::ScalarType dtype, int64_t numel) {
  Shelf& shelf = shelves_[dtype];
  TORCH_INTERNAL_ASSERT(buffers_ == 0, "buffers exist already");
  shelf.buffer_numel = std::max(shelf.buffer_numel, numel);
}

at::Tensor BufferPool::make(Shelf& shelf, at::ScalarType dtype) {
  at::Tensor buffer = allocate_(shelf.buffer_numel, dtype);
  const auto unsharded_bytes = static_cast<int64_t>(buffer.nbytes());
  meter_.add(memory_class_, unsharded_bytes);
  bytes_ += unsharded_bytes;
  ++buffers_;
  shelf.free.reserve(static_cast<size_t>(buffers_));  // so that release never allocates
  return buffer;
}

void BufferPool::fill(at::ScalarType dtype, int64_t count) {
  Shelf& shelf = shelves_[dtype];
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor buffer = make(shelf, dtype);
    shelf.free.push_back(std::move(buffer));
  }
}

int64_t BufferPool::free_buffers(at::ScalarType dtype) const {
  const auto shelf = shelves_.find(dtype);
  return shelf == shelves_.end() ? 0 : static_cast<int64_t>(shelf->second.free.size());
}

at::Tensor BufferPool::acquire(at::ScalarType dtype, int64_t numel) {
  Shelf& shelf = shelves_[dtype];
  TORCH_INTERNAL_ASSERT(numel <= shelf.buffer_numel, "a buffer of ", numel, " was not reserved");
  at::Tensor buffer;
  if (shelf.free.empty()) {
    buffer = make(shelf, dtype);
  } else {
    buffer = std::move(shelf.free.back());
    shelf.free.pop_back();
  }
  return buffer.narrow(0, 0, numel);
}

void BufferPool::release(const at::Tensor& buffer) {
  Shelf& shelf = shelves_[buffer.scalar_type()];
  at::Tensor whole = buffer.as_strided({shelf.buffer_numel}, {1}, 0);
  if (on_release_ == OnRelease::kPoison) {
    whole.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  shelf.free.push_back(std::move(whole));
}

}  // namespace tessera::internal
