#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/flat_optimizer.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// AdamW with values, gradients and moments in the memory of `device`, by the kernels of
/// libtessera_cuda.so. Values are Float; both moments [slice numel] Float per shard, zero at first,
/// padding included, from Device::allocate.
///
/// Elements get the bits of the CPU's AdamW but for one case: beta^step comes from
/// power_of() here and from std::pow there, which may differ in the last bit of a double. What an
/// element sees of it are lr / (1 - beta1^step) and sqrt(1 - beta2^step) rounded to fp32; for usual
/// betas these are the same (tests compare 50,000 steps).
std::unique_ptr<DeviceOptimizer> make_device_adamw(const ParameterTable& table,
                                                   const OptimizerPlan& plan,
                                                   const std::vector<size_t>& group_of,
                                                   std::vector<OptimizerShard> shards,
                                                   std::shared_ptr<const cuda::Api> api,
                                                   std::shared_ptr<Device> device);

}  // namespace tessera::internal
