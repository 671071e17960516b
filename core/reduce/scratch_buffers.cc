#include "tessera/core/reduce/scratch_buffers.h"

#include <ATen/ops/empty.h>

namespace tessera::internal {

ScratchBuffers::ScratchBuffers(at::Device device, MemoryMeter& meter, MemoryClass memory_class)
    : device_(device), meter_(meter), memory_class_(memory_class) {}

ScratchBuffers::~ScratchBuffers() {
  for (const at::Tensor& buffer : buffers_) {
    if (!buffer.defined()) continue;  // at::empty threw
    meter_.remove(memory_class_, static_cast<int64_t>(buffer.nbytes()));
  }
}

at::Tensor ScratchBuffers::acquire(int64_t numel, at::ScalarType dtype) {
  at::Tensor* fitting = nullptr;
  at::Tensor* too_small = nullptr;
  for (at::Tensor& buffer : buffers_) {
    if (buffer.scalar_type() != dtype || buffer.storage().use_count() > 1) continue;
    if (buffer.numel() < numel) {
      too_small = &buffer;
    } else if (fitting == nullptr || buffer.numel() < fitting->numel()) {
      fitting = &buffer;
    }
  }
  if (fitting == nullptr && too_small != nullptr) {
    meter_.remove(memory_class_, static_cast<int64_t>(too_small->nbytes()));
    too_small->reset();  // before the new one is made
  }
  if (fitting == nullptr) {
    fitting = too_small != nullptr ? too_small : &buffers_.emplace_back();
    *fitting = at::empty({numel}, at::TensorOptions(dtype).device(device_));
    meter_.add(memory_class_, static_cast<int64_t>(fitting->nbytes()));
  }
  return fitting->narrow(0, 0, numel);
}

}  // namespace tessera::internal
