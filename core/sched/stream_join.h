#pragma once

#include <memory>
#include <mutex>

#include "tessera/core/device/device.h"

namespace tessera::internal {

/// Orders uses of the same memory on different streams (the streams of the user's code and of
/// LibTorch's backward). Call pass() before queueing work on that memory; the work then runs after
/// everything that earlier callers of pass() queued. Thread-safe.
///
/// Queues nothing while the stream stays the same, which is the usual case; a change of streams
/// costs an event. Does nothing on a CPU.
class StreamJoin {
 public:
  /// `device` is where the memory lies.
  explicit StreamJoin(at::Device device) : device_(device.is_cpu() ? nullptr : device_at(device)) {}

  /// Notes that the calling thread's current stream uses the memory from now on. Local, never
  /// blocks.
  void pass();

 private:
  const std::shared_ptr<Device> device_;  // null on a CPU
  std::mutex mutex_;
  std::shared_ptr<Stream> last_;
};

}  // namespace tessera::internal
