#include "tessera/core/comm/rendezvous/backend.h"

#include <iterator>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/comm/rendezvous/hosts_world.h"
#include "tessera/core/comm/rendezvous/mpi_world.h"
#include "tessera/core/comm/rendezvous/nccl_world.h"
#include "tessera/core/comm/rendezvous/shm_world.h"

namespace tessera::internal {
namespace {

std::shared_ptr<ProcessGroup> make_loopback(ProcessGroupOptions options,
                                            const Environment& environment) {
  if (options.device.is_cpu()) return std::make_shared<LoopbackGroup>();
  return std::make_shared<LoopbackGroup>(
      take_gpu(gpu_of(options, environment, GpuChoice::Use::kOwn)));
}

constexpr Backend kBackends[] = {
    {"loopback", "one rank", /*is_for_host=*/true, /*is_for_devices=*/true, /*is_for_one=*/true,
     make_loopback},
    {"mpi", "CPUs of any hosts, under mpirun or srun", /*is_for_host=*/true,
     /*is_for_devices=*/false, /*is_for_one=*/false,
     [](ProcessGroupOptions options,
        const Environment& environment) -> std::shared_ptr<ProcessGroup> {
       return make_mpi_world(std::move(options), environment);
     }},
    {"hosts", "mpi, and shared memory inside each host", /*is_for_host=*/true,
     /*is_for_devices=*/false, /*is_for_one=*/false, make_hosts_world},
    {"shm", "ranks of one host", /*is_for_host=*/true, /*is_for_devices=*/true,
     /*is_for_one=*/false, make_shm_world},
    {"nccl", "GPUs", /*is_for_host=*/false, /*is_for_devices=*/true, /*is_for_one=*/false,
     make_nccl_world},
};

}  // namespace

std::string backend_names() {
  std::string names = "'auto'";
  for (const Backend& backend : kBackends) {
    const bool is_last = &backend == std::prev(std::end(kBackends));
    absl::StrAppend(&names, is_last ? " or '" : ", '", std::string(backend.name), "' (",
                    std::string(backend.use), ")");
  }
  return names;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return &backend;
  }
  return nullptr;
}

/// The last one that fits: they stand in rising order of what they need.
const Backend& default_backend(at::Device device, int ranks) {
  const Backend* preferred = nullptr;
  for (const Backend& backend : kBackends) {
    if (device.is_cpu() ? !backend.is_for_host : !backend.is_for_devices) continue;
    if (ranks > 1 && backend.is_for_one) continue;
    if (preferred == nullptr || ranks > 1) preferred = &backend;
  }
  TORCH_INTERNAL_ASSERT(preferred != nullptr);
  return *preferred;
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
