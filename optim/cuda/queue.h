#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/api.h"

namespace tessera::cuda {

/// Throws c10::Error with the module's words unless `status`, which `function` returned, is 0.
void require_queued(const Api& api, const char* function, int status);

/// Makes the device at `place` the calling thread's current one for a scope. Where it is already,
/// nothing is asked of the driver.
class OnDevice {
 public:
  explicit OnDevice(at::Device place) {
    const c10::impl::VirtualGuardImpl devices(place.type());
    if (devices.getDevice() != place) guard_.reset_device(place);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// Calls call(stream), an entry point of the module, with the device's current stream while the
/// device is the calling thread's current one, which the module needs. Throws c10::Error, see
/// require_queued().
template <typename Call>
void queue(const Api& api, Device& device, const char* function, const Call& call) {
  const OnDevice here(device.place());
  require_queued(api, function, call(device.current_stream()->handle()));
}

}  // namespace tessera::cuda
