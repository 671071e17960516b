#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/api.h"

namespace tessera::internal::cuda {

/// Throws c10::Error with the module's error text unless `status`, which `function` returned, is 0.
void require_queued(const Api& api, const char* function, int status);

/// Makes `torch_device` the calling thread's current device as long as this object lives. Makes no
/// driver call if it is the current device already.
class OnDevice {
 public:
  explicit OnDevice(at::Device torch_device) {
    const c10::impl::VirtualGuardImpl devices(torch_device.type());
    if (devices.getDevice() != torch_device) guard_.reset_device(torch_device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// Calls call(stream), an entry point of the module, with the device's current stream. During the
/// call the device is the calling thread's current device, as the module requires. Throws
/// c10::Error like require_queued().
template <typename Call>
void queue(const Api& api, Device& device, const char* function, const Call& call) {
  const OnDevice here(device.torch_device());
  require_queued(api, function, call(device.current_stream()->handle()));
}

}  // namespace tessera::internal::cuda
