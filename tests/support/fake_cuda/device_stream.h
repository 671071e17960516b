#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "tessera/tests/support/fake_cuda/capture.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// A stream of a pretended GPU: a queue with a thread, which knows how much is in it, so that
/// nobody needs to ask the thread whether all has run. Any thread.
class DeviceStream {
 public:
  enum class Kind : uint8_t { kDefault, kOther };

  DeviceStream(std::shared_ptr<tessera::internal::Stream> queue, Kind kind);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  /// Captured, if the stream captures.
  void run(std::function<void()> work);
  /// Never captured.
  void run_beside_capture(std::function<void()> work);
  void record(Event& event);
  void wait(Event& event);

  /// Whether all that was queued has run.
  bool is_idle();
  /// Blocks until all that is queued now has run. Throws as CUDA does if the stream captures.
  void drain();
  /// The host asks for the stream: throws if it captures.
  void check_on_host();

  bool is_default() const { return kind_ == Kind::kDefault; }
  /// What the stream is captured into; null if it is not.
  std::shared_ptr<Capture> capture();
  void set_capture(std::shared_ptr<Capture> capture);

  /// What is queued through it counts as well.
  HostStreamHandle* handle() { return &handle_; }

 private:
  const std::shared_ptr<tessera::internal::Stream> queue_;
  const Kind kind_;
  HostStreamHandle handle_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t queued_ = 0;
  uint64_t done_ = 0;
  std::shared_ptr<Capture> capture_;
};

}  // namespace tessera::internal::testing
