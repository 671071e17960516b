#include "tessera/tests/cuda_host/nccl_worlds.h"

#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/cuda_host/caller_device.h"

namespace tessera::testing {
namespace {

struct Forgotten final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

}  // namespace

Decorate over_nccl(const NcclWorldOptions& options) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  return [store, options](std::shared_ptr<ProcessGroup> given) -> std::shared_ptr<ProcessGroup> {
    nccl::WorldOptions world;
    world.api = fake_api();
    world.device = std::make_shared<CallerDevice>(HostDevice::Options{
        .longest_delay = options.longest_delay, .seed = static_cast<uint64_t>(given->rank()) + 1});
    world.store = store;
    world.rank = given->rank();
    world.size = given->size();
    world.timeout = options.timeout;
    world.store_poll = std::chrono::milliseconds(5);
    world.local_poll = std::chrono::milliseconds(1);
    return nccl::make_world(std::move(world));
  };
}

std::shared_ptr<Work> ForgetfulGroup::wait_unless(Forgets what, std::shared_ptr<Work> work) const {
  if (what == forgets_) return std::make_shared<Forgotten>();
  return work;
}

std::shared_ptr<Work> ForgetfulGroup::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                                 std::string_view tag) {
  return wait_unless(Forgets::kAllReduce, inner_->all_reduce(tensor, op, tag));
}

std::shared_ptr<Work> ForgetfulGroup::reduce_scatter(const at::Tensor& output,
                                                     const at::Tensor& input, ReduceOp op,
                                                     std::string_view tag, int slice) {
  return wait_unless(Forgets::kReduceScatter,
                     inner_->reduce_scatter(output, input, op, tag, slice));
}

std::shared_ptr<Work> ForgetfulGroup::all_gather(const at::Tensor& output, const at::Tensor& input,
                                                 std::string_view tag) {
  return wait_unless(Forgets::kAllGather, inner_->all_gather(output, input, tag));
}

std::shared_ptr<ProcessGroup> ForgetfulGroup::subgroup(const std::vector<int>& ranks,
                                                       std::string_view name) {
  auto made = inner_->subgroup(ranks, name);
  if (made == nullptr) return nullptr;
  return std::make_shared<ForgetfulGroup>(std::move(made), forgets_);
}

}  // namespace tessera::testing
