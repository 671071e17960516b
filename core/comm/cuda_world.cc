#include "tessera/core/comm/cuda_world.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/core/comm/handshake.h"
#include "tessera/core/comm/loopback_group.h"
#include "tessera/core/comm/nccl/group.h"
#include "tessera/core/comm/refusal.h"
#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/cuda_library.h"
#include "tessera/core/error_text.h"

namespace tessera {
namespace {

/// Keys of this world's own.
c10::intrusive_ptr<c10d::Store> meet_others(const CudaWorldOptions& options) {
  if (options.size == 1) return c10::make_intrusive<c10d::HashStore>();
  HandshakeOptions handshake;
  handshake.rank = options.rank;
  handshake.world_size = options.size;
  handshake.job_token = options.job_token;
  handshake.timeout = options.timeout;
  handshake.device = "cuda";
  return c10::make_intrusive<c10d::PrefixStore>(meet_on_store(options.place, handshake),
                                                options.place.store);
}

std::shared_ptr<const nccl::Api> take_nccl() {
  auto api = nccl::load_api();
  TORCH_CHECK(api.ok(), std::string(api.status().message()));
  return *std::move(api);
}

}  // namespace

std::shared_ptr<Device> take_gpu(const GpuChoice& choice) {
  const auto library = load_cuda_library();
  TORCH_CHECK(library.ok(), std::string(library.status().message()));
  int index = choice.index.value_or(choice.local_rank);
  if (!choice.index && choice.use == GpuChoice::Use::kShared) index %= library->device_count;
  TORCH_CHECK(index < library->device_count, "[device] ", choice.index ? "options" : "LOCAL_RANK",
              ": got GPU ", index, ", expected one of the ", library->device_count,
              " that this process sees (CUDA_VISIBLE_DEVICES); start as many ranks per host as"
              " there are GPUs");
  auto device = std::make_shared<CudaDevice>(static_cast<c10::DeviceIndex>(index));
  device->make_current();
  return device;
}

std::shared_ptr<ProcessGroup> make_cuda_world(const CudaWorldOptions& options) {
  if (options.size == 1 && options.backend == CudaWorldOptions::Backend::kNcclForSeveral) {
    return std::make_shared<LoopbackGroup>(take_gpu(options.gpu));
  }
  nccl::WorldOptions world;
  world.store = meet_others(options);
  world.rank = options.rank;
  world.size = options.size;
  world.timeout = options.timeout;
  world.nccl = options.nccl;
  std::string problem;
  try {
    world.device = take_gpu(options.gpu);
    world.api = take_nccl();  // after LibTorch's: then it is LibTorch's own NCCL
    problem = nccl::find_lack(*world.api, world.nccl);
  } catch (const std::exception& error) {
    problem = error_text(error);
  }
  refuse_together(StoreRanks{*world.store, options.rank, options.size, options.timeout}, problem,
                  "init_process_group");
  return nccl::make_world(std::move(world));
}

}  // namespace tessera
