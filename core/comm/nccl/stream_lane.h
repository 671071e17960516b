#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/device/device.h"

namespace tessera::internal::nccl {

/// A lane on a device: a communicator and a stream of its own, so that the work of one lane never
/// queues after the work of another.
class StreamLane {
 public:
  StreamLane(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator)
      : device_(std::move(device)),
        communicator_(std::move(communicator)),
        stream_(device_->make_stream(Device::Priority::kHigh)),
        begin_(device_->make_event()) {}

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const std::shared_ptr<Stream>& stream() const { return stream_; }

  /// Orders later work of this lane after everything that is queued on the current stream now.
  void follow_current() {
    device_->current_stream()->record(*begin_);
    stream_->wait(*begin_);
  }

  /// Returns an event that nothing else uses. The lane keeps a reference to it, and may return it
  /// again once that is the only reference.
  std::shared_ptr<Event> take_event() {
    // The search goes round, beginning after the event that was found last: events are dropped in
    // about the order in which they were taken, so the next one is the most likely to be free.
    for (size_t looked = 0; looked < ends_.size(); ++looked) {
      const auto& event = ends_[next_];
      next_ = (next_ + 1) % ends_.size();
      if (event.use_count() == 1) return event;
    }
    ends_.push_back(device_->make_event());
    return ends_.back();
  }

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<Event> begin_;
  std::vector<std::shared_ptr<Event>> ends_;
  size_t next_ = 0;
};

}  // namespace tessera::internal::nccl
