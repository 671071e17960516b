#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "tessera/tests/support/fake_cuda/capture.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// A stream of a fake GPU: a queue with a thread. It counts its work, so is_idle() does not ask the
/// thread. Any thread.
class DeviceStream {
 public:
  enum class Kind : uint8_t { kDefault, kOther };

  DeviceStream(std::shared_ptr<tessera::internal::Stream> queue, Kind kind);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  /// Queues work, which is captured if the stream captures.
  void run(std::function<void()> work);
  /// Queues work that is never captured.
  void run_beside_capture(std::function<void()> work);
  void record(Event& event);
  void wait(Event& event);

  /// Returns true if all queued work has run.
  bool is_idle();
  /// Blocks until all work queued so far has run. Throws CUDA's error if the stream captures.
  void drain();
  /// Throws if the stream captures: the host must not query it then.
  void check_on_host();

  bool is_default() const { return kind_ == Kind::kDefault; }
  /// The stream's capture; null if there is none.
  std::shared_ptr<Capture> capture();
  void set_capture(std::shared_ptr<Capture> capture);

  /// Returns the handle that other libraries use. Work queued through it counts as well.
  HostStreamHandle* handle() { return &handle_; }
  /// Returns how often other libraries have queued work, as kernels and host functions.
  int64_t launches() const { return launches_; }

 private:
  // The functions of handle_. `stream` is a DeviceStream.
  static void enqueue(void* stream, void (*run)(void*), void* argument);
  static void enqueue_repeatable(void* stream, void (*run)(void*), void (*drop)(void*),
                                 void* argument);

  const std::shared_ptr<tessera::internal::Stream> queue_;
  const Kind kind_;
  HostStreamHandle handle_;
  std::atomic<int64_t> launches_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t queued_ = 0;
  uint64_t done_ = 0;
  std::shared_ptr<Capture> capture_;
};

}  // namespace tessera::internal::testing
