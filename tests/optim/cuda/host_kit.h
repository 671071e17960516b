#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "tessera/tests/optim/cuda/device_kit.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::cuda {

/// A kit with the fake module over streams that are threads; each piece of work is delayed by up to
/// `longest_delay`.
class HostKit : public DeviceKit {
 public:
  explicit HostKit(std::chrono::microseconds longest_delay = std::chrono::microseconds(0))
      : HostKit(
            std::make_shared<testing::HostDevice>(testing::HostDevice::Options{longest_delay, 3})) {
  }

  /// Returns true if `calls` return while the device is stopped. Resumes it afterwards, so that
  /// waiting calls end, too.
  bool returns_while_device_stands(const std::function<void()>& calls) const {
    std::promise<void> gate;
    testing::HostDevice::run(*host_->current_stream(),
                             [open = gate.get_future().share()] { open.wait(); });
    std::future<void> done = std::async(std::launch::async, calls);
    const bool returned = done.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    gate.set_value();
    done.get();
    return returned;
  }

 private:
  explicit HostKit(std::shared_ptr<testing::HostDevice> device)
      : DeviceKit(device, load_api([](const char*) { return FAKE_KERNELS_PATH; }).value()),
        host_(std::move(device)) {}

  std::shared_ptr<testing::HostDevice> host_;
};

}  // namespace tessera::internal::cuda
