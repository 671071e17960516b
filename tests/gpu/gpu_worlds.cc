#include "tessera/tests/gpu/gpu_worlds.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/comm/groups/staged_group.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/nccl/group.h"
#include "tessera/core/device/cuda_device.h"

namespace tessera::internal::testing {

namespace {

std::shared_ptr<Device> take_gpu(int rank) {
  auto device = std::make_shared<CudaDevice>(static_cast<c10::DeviceIndex>(rank));
  device->make_current();
  return device;
}

}  // namespace

Decorate staged_over_host() {
  return [](std::shared_ptr<ProcessGroup> world) -> std::shared_ptr<ProcessGroup> {
    std::shared_ptr<Device> device = take_gpu(world->rank());
    return std::make_shared<StagedGroup>(std::move(world), std::move(device));
  };
}

Decorate over_nccl() {
  const auto table = std::make_shared<JobTable>();
  return [table](const std::shared_ptr<ProcessGroup>& given) -> std::shared_ptr<ProcessGroup> {
    auto api = nccl::load_api();
    TORCH_CHECK(api.ok(), std::string(api.status().message()));
    nccl::WorldOptions world;
    world.api = *std::move(api);
    world.device = take_gpu(given->rank());
    world.table = table;
    world.rank = given->rank();
    world.size = given->size();
    world.timeout = std::chrono::seconds(20);
    world.table_poll = std::chrono::milliseconds(5);
    world.local_poll = std::chrono::milliseconds(1);
    return nccl::make_world(std::move(world));
  };
}

Decorate alone() {
  return [](const std::shared_ptr<ProcessGroup>& given) -> std::shared_ptr<ProcessGroup> {
    return std::make_shared<LoopbackGroup>(take_gpu(given->rank()));
  };
}

int most_rank_threads() {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

}  // namespace tessera::internal::testing
