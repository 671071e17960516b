#include "tessera/core/device/gpu_choice.h"

#include <string>

#include <c10/util/Exception.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/cuda_library.h"

namespace tessera::internal {

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

}  // namespace tessera::internal
