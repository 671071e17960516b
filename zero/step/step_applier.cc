#include "tessera/zero/step/step_applier.h"

#include <c10/util/Exception.h>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/zero/step/cpu_step_applier.h"
#include "tessera/zero/step/gpu_step_applier.h"
#include "tessera/zero/step/partition.h"

namespace tessera::internal {

void StepApplier::agree_to_update(const StepVote::RankReport& /*rank_report*/) {
  TORCH_INTERNAL_ASSERT(false, "this applier updates in step()");
}

std::unique_ptr<StepApplier> make_step_applier(const StepApplier::Parts& parts,
                                               const OptimizerPlan& plan,
                                               const std::vector<size_t>& group_of) {
  std::vector<OptimizerShard> shards =
      optimizer_shards(parts.plan, parts.slices, parts.store.masters().values());
  if (parts.group.can().completes_on_host) {
    return std::make_unique<CpuStepApplier>(
        parts, make_cpu_optimizer(parts.table, plan, group_of, std::move(shards)));
  }
  auto api = cuda::load_api();
  TORCH_CHECK(api.ok(), std::string(api.status().message()));
  const std::shared_ptr<Device> device = device_at(parts.group.device());
  if (parts.options.offload != Offload::kNone) {
    const auto pinned = [&device](int64_t numel, at::ScalarType dtype) {
      return device->allocate_on_host(numel, dtype);
    };
    return std::make_unique<CpuStepApplier>(
        parts, make_cpu_optimizer(parts.table, plan, group_of, std::move(shards), pinned),
        std::make_unique<OffloadedGradients>(parts.table, parts.plan, parts.slices, *api, device,
                                             parts.meter));
  }
  auto optimizer = make_gpu_optimizer(parts.table, plan, group_of, std::move(shards), *api, device);
  return std::make_unique<GpuStepApplier>(parts,
                                          parts.options.asynchronous_step
                                              ? GpuStepApplier::Known::kInNextStep
                                              : GpuStepApplier::Known::kInStep,
                                          std::move(optimizer), *api, device);
}

}  // namespace tessera::internal
