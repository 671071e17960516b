#include "tessera/core/comm/rendezvous/worlds.h"

#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/nccl/group.h"
#include "tessera/core/comm/rendezvous/meet.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {
namespace {

std::shared_ptr<SharedTable> meet_others(const ProcessGroupOptions& options,
                                         const Environment& environment) {
  if (environment.world_size == 1) return std::make_shared<JobTable>();
  Transport none;  // before NCCL connects the ranks, they share nothing but a table
  const auto place = find_place(options, environment);
  return meet(*place, none, environment, options.timeout, options.device)
      .make_table(options.timeout);
}

std::shared_ptr<const nccl::Api> take_nccl() {
  auto api = nccl::load_api();
  TORCH_CHECK(api.ok(), std::string(api.status().message()));
  return *std::move(api);
}

}  // namespace

GpuChoice gpu_of(const ProcessGroupOptions& options, const Environment& environment,
                 GpuChoice::Use use) {
  GpuChoice choice{.local_rank = environment.local_rank, .use = use};
  if (options.device.has_index()) choice.index = options.device.index();
  return choice;
}

std::shared_ptr<ProcessGroup> make_nccl_world(ProcessGroupOptions options,
                                              const Environment& environment) {
  nccl::WorldOptions world{.table = meet_others(options, environment),
                           .rank = environment.rank,
                           .size = environment.world_size,
                           .timeout = options.timeout,
                           .nccl = options.nccl};
  world.problem = thrown_by([&] {
    world.device = take_gpu(gpu_of(options, environment, GpuChoice::Use::kOwn));
    // Loaded after LibTorch's CUDA libraries, so that this is the NCCL that they use.
    world.api = take_nccl();
  });
  return nccl::make_world(std::move(world));
}

}  // namespace tessera::internal
