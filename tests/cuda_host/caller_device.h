#pragma once

#include <memory>

#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// A HostDevice whose current stream is the calling thread: LibTorch's operators on CPU tensors run
/// in the call, so the caller must wait for lanes. A whole engine runs on it, and a missing wait
/// has the same effect as on an accelerator.
class CallerDevice final : public Device {
 public:
  /// `lanes`: the options of all streams except the current one.
  explicit CallerDevice(HostDevice::Options lanes);

  at::Device torch_device() const override { return lanes_.torch_device(); }
  std::shared_ptr<Stream> current_stream() override { return caller_; }
  std::shared_ptr<Stream> make_stream(Priority priority) override {
    return lanes_.make_stream(priority);
  }
  std::shared_ptr<Event> make_event() override { return lanes_.make_event(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return lanes_.allocate(numel, dtype);
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return lanes_.allocate(numel, dtype);
  }

 private:
  HostDevice lanes_;
  std::shared_ptr<Stream> caller_;
};

}  // namespace tessera::internal::testing
