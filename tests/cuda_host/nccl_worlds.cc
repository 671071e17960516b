#include "tessera/tests/cuda_host/nccl_worlds.h"

#include <utility>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/cuda_host/caller_device.h"

namespace tessera::internal::testing {
namespace {

struct Forgotten final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

}  // namespace

Decorate over_nccl(const NcclWorldOptions& options) {
  const auto table = std::make_shared<JobTable>();
  return [table, options](std::shared_ptr<ProcessGroup> given) -> std::shared_ptr<ProcessGroup> {
    nccl::WorldOptions world;
    world.api = fake_api();
    world.device = std::make_shared<CallerDevice>(HostDevice::Options{
        .longest_delay = options.longest_delay, .seed = static_cast<uint64_t>(given->rank()) + 1});
    world.table = table;
    world.rank = given->rank();
    world.size = given->size();
    world.timeout = options.timeout;
    world.table_poll = std::chrono::milliseconds(100);  // as in nccl_ranks.cc
    world.local_poll = std::chrono::milliseconds(1);
    return nccl::make_world(std::move(world));
  };
}

std::shared_ptr<Work> ForgetfulGroup::run(const Collective& collective) {
  auto work = inner_->run(collective);
  return collective.op == forgets_ ? std::make_shared<Forgotten>() : std::move(work);
}

}  // namespace tessera::internal::testing
