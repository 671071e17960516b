#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "tessera/core/device/device.h"

namespace tessera::internal::testing {

/// What Stream::handle() of a host stream points to: a plain C structure, so that a library loaded
/// at run time can queue work without linking our code.
struct HostStreamHandle {
  void* stream;
  /// Queues a call of run(argument).
  void (*enqueue)(void* stream, void (*run)(void* argument), void* argument);
  /// The same for work that may be captured into a graph: run(argument) is called once, or once per
  /// replay, and drop(argument) at the end. Null if this stream does not support capture.
  void (*enqueue_repeatable)(void* stream, void (*run)(void* argument),
                             void (*drop)(void* argument), void* argument) = nullptr;
};

/// A device whose memory is the host's and whose streams are threads: it simulates an accelerator's
/// order of execution on any machine. Streams and events behave as CUDA's do, so a missing wait has
/// the same effect as there; with delays it shows in every run.
class HostDevice final : public Device {
 public:
  struct Options {
    /// Upper bound of the random delay before each piece of work of a stream; 0: none.
    std::chrono::microseconds longest_delay = std::chrono::microseconds(0);
    uint64_t seed = 1;  ///< of the delays
  };

  explicit HostDevice(Options options);
  HostDevice() : HostDevice(Options{}) {}

  at::Device torch_device() const override { return at::kCPU; }
  /// There is one stream for all threads. LibTorch's operators run in the call, not on it; to order
  /// work with it, a test queues it with run().
  std::shared_ptr<Stream> current_stream() override { return current_; }
  std::shared_ptr<Stream> make_stream(Priority priority) override;
  std::shared_ptr<Event> make_event() override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return allocate(numel, dtype);
  }

  /// Queues `work` on a stream of this device.
  static void run(Stream& stream, std::function<void()> work);
  /// Blocks until all work queued on the current stream so far has run.
  void synchronize();

 private:
  Options options_;
  uint64_t streams_ = 0;
  std::shared_ptr<Stream> current_;
};

}  // namespace tessera::internal::testing
