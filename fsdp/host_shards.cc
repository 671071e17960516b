#include "tessera/fsdp/host_shards.h"

#include <utility>

namespace tessera::internal {

HostShards::HostShards(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      stream_(device_->make_stream(Device::Priority::kDefault)),
      begun_(device_->make_event()),
      copied_(device_->make_event()) {}

std::shared_ptr<void> HostShards::bring(const at::Tensor& to, const at::Tensor& shard) {
  device_->current_stream()->record(*begun_);
  stream_->wait(*begun_);
  stream_->copy(to, shard);
  stream_->record(*copied_);
  return device_->use(*stream_);
}

}  // namespace tessera::internal
