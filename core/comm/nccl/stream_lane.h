#pragma once

#include <memory>
#include <vector>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/device/device.h"

namespace tessera::internal::nccl {

/// A lane on a device: a communicator and a stream of its own, so that the work of one lane never
/// queues behind the work of another.
class StreamLane {
 public:
  StreamLane(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator);

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const std::shared_ptr<Stream>& stream() const { return stream_; }

  /// Orders later work of this lane after everything that is queued on the current stream now.
  void follow_current();

  /// An unused event; it is reused once the last other owner has dropped it.
  std::shared_ptr<Event> take_event();

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<Event> begin_;
  std::vector<std::shared_ptr<Event>> ends_;
  size_t next_ = 0;
};

}  // namespace tessera::internal::nccl
