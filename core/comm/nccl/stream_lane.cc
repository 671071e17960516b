#include "tessera/core/comm/nccl/stream_lane.h"

#include <utility>

namespace tessera::internal::nccl {

StreamLane::StreamLane(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator)
    : device_(std::move(device)),
      communicator_(std::move(communicator)),
      stream_(device_->make_stream(Device::Priority::kHigh)),
      begin_(device_->make_event()) {}

void StreamLane::follow_current() {
  device_->current_stream()->record(*begin_);
  stream_->wait(*begin_);
}

std::shared_ptr<Event> StreamLane::take_event() {
  // They are dropped in the order in which they were taken, or nearly.
  for (size_t looked = 0; looked < ends_.size(); ++looked) {
    const auto& event = ends_[next_];
    next_ = (next_ + 1) % ends_.size();
    if (event.use_count() == 1) return event;
  }
  ends_.push_back(device_->make_event());
  return ends_.back();
}

}  // namespace tessera::internal::nccl
