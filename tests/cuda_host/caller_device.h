#pragma once

#include <memory>

#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// The streams of a HostDevice, but for the current one, which is the calling thread: operators of
/// LibTorch on CPU tensors run in the call, so what has to wait for a lane is the caller. A whole
/// engine runs on it, and a wait that it lacks shows as it would on an accelerator.
class CallerDevice final : public Device {
 public:
  /// `lanes`: of all streams but the current one.
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
