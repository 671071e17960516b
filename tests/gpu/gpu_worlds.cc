#include "tessera/tests/gpu/gpu_worlds.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/core/comm/staged_group.h"
#include "tessera/core/device/cuda_device.h"

namespace tessera::testing {

Decorate staged_over_host() {
  return [](std::shared_ptr<ProcessGroup> world) -> std::shared_ptr<ProcessGroup> {
    auto device = std::make_shared<CudaDevice>(static_cast<c10::DeviceIndex>(world->rank()));
    device->make_current();
    return std::make_shared<StagedGroup>(std::move(world), std::move(device));
  };
}

int most_rank_threads() {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

}  // namespace tessera::testing
