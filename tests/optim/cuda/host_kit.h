#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "tessera/tests/optim/cuda/device_kit.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::cuda {

/// A kit over streams that are threads and the fake module; each piece of work is late by up to
/// `longest_delay`.
class HostKit : public DeviceKit {
 public:
  explicit HostKit(std::chrono::microseconds longest_delay = std::chrono::microseconds(0))
      : HostKit(
            std::make_shared<testing::HostDevice>(testing::HostDevice::Options{longest_delay, 3})) {
  }

  /// Whether `calls` return while the device stands still. Lets it go on afterwards, so that calls
  /// that wait end, too.
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
