#include "tessera/fsdp/shard_uploads.h"

#include <utility>

namespace tessera::internal {

ShardUploads::ShardUploads(std::shared_ptr<Device> device, int64_t rounded_bytes,
                           MemoryMeter& meter)
    : device_(std::move(device)),
      stream_(device_->make_stream(Device::Priority::kDefault)),
      meter_(meter),
      begun_(device_->make_event()),
      copied_(device_->make_event()) {
  if (rounded_bytes == 0) return;
  for (Buffer& buffer : buffers_) {
    buffer = {device_->allocate_on_host(rounded_bytes, at::kByte), device_->make_event()};
    meter_.add(MemoryClass::kHost, rounded_bytes);
  }
}

ShardUploads::~ShardUploads() {
  for (const Buffer& buffer : buffers_) {
    if (buffer.memory.defined()) meter_.remove(MemoryClass::kHost, buffer.memory.numel());
  }
}

void ShardUploads::start(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  device_->current_stream()->record(*begun_);
  stream_->wait(*begun_);
  if (to.scalar_type() == from.scalar_type()) {
    stream_->copy(to, from);
  } else {
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    buffer.copied->synchronize();
    const at::Tensor rounded =
        buffer.memory.narrow(0, 0, static_cast<int64_t>(to.nbytes())).view(to.scalar_type());
    rounded.copy_(from);
    stream_->copy(to, rounded);
    stream_->record(*buffer.copied);
  }
  stream_->record(*copied_);
}

}  // namespace tessera::internal
