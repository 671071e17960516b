#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "tessera/core/device/host_device.h"

namespace tessera::testing {

/// A stream of a pretended GPU: a queue with a thread, which knows how much is in it, so that
/// nobody needs to ask the thread whether all has run. Any thread.
class DeviceStream {
 public:
  explicit DeviceStream(std::shared_ptr<tessera::Stream> queue);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  void run(std::function<void()> work);
  void record(Event& event);
  void wait(Event& event);

  /// Whether all that was queued has run.
  bool is_idle();
  /// Blocks until all that is queued now has run.
  void drain();

  /// What is queued through it counts as well.
  HostStreamHandle* handle() { return &handle_; }

 private:
  const std::shared_ptr<tessera::Stream> queue_;
  HostStreamHandle handle_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t queued_ = 0;
  uint64_t done_ = 0;
};

}  // namespace tessera::testing
