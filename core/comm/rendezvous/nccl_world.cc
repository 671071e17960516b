#include "tessera/core/comm/rendezvous/nccl_world.h"

#include <exception>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/handshake/handshake.h"
#include "tessera/core/comm/nccl/group.h"
#include "tessera/core/comm/rendezvous/backend.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {
namespace {

/// Keys of this world's own in the store of `place`, if it is of several ranks.
c10::intrusive_ptr<c10d::Store> meet_others(const ProcessGroupOptions& options,
                                            const Environment& environment,
                                            const Endpoint& endpoint) {
  if (environment.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  HandshakeOptions handshake;
  handshake.rank = environment.rank;
  handshake.world_size = environment.world_size;
  handshake.job_token = environment.job_token;
  handshake.timeout = options.timeout;
  handshake.device = "cuda";
  return c10::make_intrusive<c10d::PrefixStore>(meet_on_store(endpoint, handshake), endpoint.store);
}

std::shared_ptr<const nccl::Api> take_nccl() {
  auto api = nccl::load_api();
  TORCH_CHECK(api.ok(), std::string(api.status().message()));
  return *std::move(api);
}

}  // namespace

std::shared_ptr<ProcessGroup> make_nccl_world(ProcessGroupOptions options,
                                              const Environment& environment) {
  Endpoint endpoint;
  if (environment.world_size > 1) endpoint = meeting_endpoint(options, environment);
  nccl::WorldOptions world;
  world.store = meet_others(options, environment, endpoint);
  world.rank = environment.rank;
  world.size = environment.world_size;
  world.timeout = options.timeout;
  world.nccl = options.nccl;
  std::string problem;
  try {
    world.device = take_gpu(gpu_of(options, environment, GpuChoice::Use::kOwn));
    world.api = take_nccl();  // after LibTorch's: then it is LibTorch's own NCCL
    problem = nccl::find_unsupported(*world.api, world.nccl);
  } catch (const std::exception& error) {
    problem = error_text(error);
  }
  refuse_on_all_ranks(StoreRanks{*world.store, world.rank, world.size, options.timeout}, problem,
                      "init_process_group");
  return nccl::make_world(std::move(world));
}

}  // namespace tessera::internal
