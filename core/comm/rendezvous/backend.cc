#include "tessera/core/comm/rendezvous/backend.h"

#include <utility>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/comm/rendezvous/worlds.h"

namespace tessera::internal {
namespace {

std::shared_ptr<ProcessGroup> make_loopback(ProcessGroupOptions options,
                                            const Environment& environment) {
  if (options.device.is_cpu()) return std::make_shared<LoopbackGroup>();
  return std::make_shared<LoopbackGroup>(
      take_gpu(gpu_of(options, environment, GpuChoice::Use::kOwn)));
}

constexpr Backend kBackends[] = {
    {"loopback", /*is_for_host=*/true, /*is_for_devices=*/true, make_loopback},
    {"mpi", /*is_for_host=*/true, /*is_for_devices=*/false,
     [](ProcessGroupOptions options,
        const Environment& environment) -> std::shared_ptr<ProcessGroup> {
       return make_mpi_world(std::move(options), environment);
     }},
    {"hosts", /*is_for_host=*/true, /*is_for_devices=*/false, make_hosts_world},
    {"shm", /*is_for_host=*/true, /*is_for_devices=*/true, make_shm_world},
    {"nccl", /*is_for_host=*/false, /*is_for_devices=*/true, make_nccl_world},
};

}  // namespace

const Backend* find_backend(std::string_view name) {
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return &backend;
  }
  return nullptr;
}

const Backend& default_backend(at::Device device, int ranks) {
  const char* const name = ranks == 1 ? "loopback" : device.is_cpu() ? "shm" : "nccl";
  return *find_backend(name);
}

GpuChoice gpu_of(const ProcessGroupOptions& options, const Environment& environment,
                 GpuChoice::Use use) {
  GpuChoice choice;
  if (options.device.has_index()) choice.index = options.device.index();
  choice.local_rank = environment.local_rank;
  choice.use = use;
  return choice;
}

}  // namespace tessera::internal
