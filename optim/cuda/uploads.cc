#include "tessera/optim/cuda/uploads.h"

#include <utility>

namespace tessera::internal::cuda {

Uploads::Uploads(std::shared_ptr<Device> device, int64_t words)
    : device_(std::move(device)), words_(words) {}

const at::Tensor& Uploads::take() {
  // Buffers are taken in turn, so the one after the buffer taken last was taken longest ago. Copies
  // run in the order in which they were queued: if the copies from that buffer have not run, no
  // other buffer is free.
  taken_ = buffers_.empty() ? 0 : (taken_ + 1) % buffers_.size();
  if (buffers_.empty() || !buffers_[taken_].copied->is_done()) {
    buffers_.insert(buffers_.begin() + static_cast<std::ptrdiff_t>(taken_),
                    {device_->allocate_on_host(words_, at::kLong), device_->make_event()});
  }
  return buffers_[taken_].memory;
}

void Uploads::queued(Stream& stream) { stream.record(*buffers_[taken_].copied); }

}  // namespace tessera::internal::cuda
