#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/api.h"

namespace tessera::internal::cuda {

/// A device, its kernels, and copies between host and device on its current stream.
class DeviceKit {
 public:
  DeviceKit(std::shared_ptr<Device> device, std::shared_ptr<const Api> api)
      : device_(std::move(device)), api_(std::move(api)) {}

  const std::shared_ptr<Device>& device() const { return device_; }
  const std::shared_ptr<const Api>& api() const { return api_; }

  /// Queues a copy of `tensor` (1-d, contiguous) to the device. It lives at least until wait(),
  /// because queued kernels hold raw pointers.
  at::Tensor put(const at::Tensor& tensor) const {
    const at::Tensor staging = device_->allocate_on_host(tensor.numel(), tensor.scalar_type());
    std::memcpy(staging.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
    at::Tensor on_device = device_->allocate(tensor.numel(), tensor.scalar_type());
    device_->current_stream()->copy(on_device, staging);
    kept_.push_back(on_device);
    return on_device;
  }
  /// Queues an overwrite of the device's tensor.
  void write(const at::Tensor& on_device, const at::Tensor& tensor) const {
    device_->current_stream()->copy(on_device, put(tensor));
  }
  /// Returns a copy on the host; waits for the device.
  at::Tensor get(const at::Tensor& on_device) const {
    at::Tensor copy = device_->allocate_on_host(on_device.numel(), on_device.scalar_type());
    device_->current_stream()->copy(copy, on_device.reshape({on_device.numel()}));
    wait();
    return copy;
  }
  /// Copies words to the device, and back.
  at::Tensor put(const std::vector<int64_t>& words) const {
    const at::Tensor tensor = at::empty({static_cast<int64_t>(words.size())}, at::kLong);
    std::copy(words.begin(), words.end(), tensor.mutable_data_ptr<int64_t>());
    return put(tensor);
  }
  std::vector<int64_t> words(const at::Tensor& on_device) const {
    const at::Tensor copy = get(on_device);
    const auto* data = copy.const_data_ptr<int64_t>();
    return {data, data + copy.numel()};
  }
  void wait() const {
    const std::shared_ptr<Event> event = device_->make_event();
    device_->current_stream()->record(*event);
    event->synchronize();
    kept_.clear();
  }

 private:
  mutable std::vector<at::Tensor> kept_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Api> api_;
};

/// Waits for the device at the end of a scope, before objects declared above are destroyed: queued
/// work holds raw pointers to host memory.
class Settled {
 public:
  explicit Settled(const DeviceKit& kit) : kit_(kit) {}
  ~Settled() { kit_.wait(); }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  const DeviceKit& kit_;
};

}  // namespace tessera::internal::cuda
