#include "tessera/core/sched/slab_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera {

SlabPool::SlabPool(Allocate allocate, MemoryMeter& meter, MemoryClass memory_class,
                   OnRelease on_release)
    : allocate_(std::move(allocate)),
      meter_(meter),
      memory_class_(memory_class),
      on_release_(on_release) {}

SlabPool::~SlabPool() { close(); }

void SlabPool::close() {
  if (bytes_ > 0) meter_.remove(memory_class_, bytes_);
  bytes_ = 0;
  shelves_.clear();
}

void SlabPool::reserve(at::ScalarType dtype, int64_t numel) {
  Shelf& shelf = shelves_[dtype];
  TORCH_INTERNAL_ASSERT(slabs_ == 0, "slabs exist already");
  shelf.slab_numel = std::max(shelf.slab_numel, numel);
}

at::Tensor SlabPool::make(Shelf& shelf, at::ScalarType dtype) {
  at::Tensor slab = allocate_(shelf.slab_numel, dtype);
  const auto slab_bytes = static_cast<int64_t>(slab.nbytes());
  meter_.add(memory_class_, slab_bytes);
  bytes_ += slab_bytes;
  ++slabs_;
  shelf.free.reserve(static_cast<size_t>(slabs_));  // so that release never allocates
  return slab;
}

void SlabPool::fill(at::ScalarType dtype, int64_t count) {
  Shelf& shelf = shelves_[dtype];
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor slab = make(shelf, dtype);
    shelf.free.push_back(std::move(slab));
  }
}

int64_t SlabPool::free_slabs(at::ScalarType dtype) const {
  const auto shelf = shelves_.find(dtype);
  return shelf == shelves_.end() ? 0 : static_cast<int64_t>(shelf->second.free.size());
}

at::Tensor SlabPool::acquire(at::ScalarType dtype, int64_t numel) {
  Shelf& shelf = shelves_[dtype];
  TORCH_INTERNAL_ASSERT(numel <= shelf.slab_numel, "a slab of ", numel, " was not reserved");
  at::Tensor slab;
  if (shelf.free.empty()) {
    slab = make(shelf, dtype);
  } else {
    slab = std::move(shelf.free.back());
    shelf.free.pop_back();
  }
  return slab.narrow(0, 0, numel);
}

void SlabPool::release(const at::Tensor& slab) {
  Shelf& shelf = shelves_[slab.scalar_type()];
  at::Tensor whole = slab.as_strided({shelf.slab_numel}, {1}, 0);
  if (on_release_ == OnRelease::kPoison) {
    whole.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  shelf.free.push_back(std::move(whole));
}

}  // namespace tessera
