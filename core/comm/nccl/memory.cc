#include "tessera/core/comm/nccl/memory.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/core/numbers/round_up.h"
#include "tessera/core/process/ending_thread.h"

namespace tessera::internal::nccl {
namespace {

/// Memory from ncclMemAlloc, kept until nothing uses it. See Note [End of registered memory].
struct Block {
  void* data;
  std::shared_ptr<World> world;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::shared_ptr<Stream> stream;  // the stream that was current at the allocation

  ~Block() {
    try {
      Device& device = *world->options().device;
      std::vector<std::shared_ptr<Event>> ends;
      for (const auto& last : {stream, device.current_stream()}) {
        ends.push_back(device.make_event());
        last->record(*ends.back());
      }
      EndingThread("the release of NCCL's memory", [data = data, world = std::move(world),
                                                    ends = std::move(ends),
                                                    communicators = std::move(communicators)] {
        try {
          // Inside a call, NCCL makes the communicator's device current, and afterwards restores
          // the device that was current before. In a new thread that device is GPU 0, and making it
          // current would create a context on it. So make this rank's device current first.
          const c10::DeviceGuard here(world->options().device->torch_device());
          for (const auto& end : ends) end->synchronize();
          for (const auto& communicator : communicators) communicator->deregister_memory(data);
          world->options().api->mem_free(data);
        } catch (...) {  // the device has failed, and its memory is lost anyway
        }
      }).detach();
    } catch (...) {  // no memory, or a lost device: the block stays until the process ends
    }
  }
};

}  // namespace

at::Tensor allocate_registered(Pending& pending,
                               const std::vector<std::shared_ptr<Communicator>>& communicators,
                               int64_t numel, at::ScalarType dtype, int64_t bytes,
                               Communicator::Registration kind) {
  const WorldOptions& options = pending.world().options();
  const at::Device device = options.device->torch_device();
  const c10::DeviceGuard here(device);
  const auto whole = static_cast<size_t>(round_up(bytes, kWindowAlignment));
  void* data = nullptr;
  const Result result = options.api->mem_alloc(&data, whole);
  TORCH_CHECK(result == Result::kSuccess && data != nullptr, "[comm] allocate: got no memory for ",
              whole, " bytes (NCCL reports ", options.api->get_error_string(result),
              "), expected them; use smaller buffers or free memory");
  auto block = std::make_shared<Block>(data, pending.world().shared_from_this(), communicators,
                                       options.device->current_stream());
  for (const auto& communicator : communicators) {
    check_result(pending, *communicator, communicator->register_memory(data, whole, kind));
    await_ready(pending, *communicator);
    const bool needs_window = kind == Communicator::Registration::kWindow && pending.size() > 1;
    TORCH_CHECK(!needs_window || communicator->has_window(data),
                "[comm] allocate: got no window from NCCL, expected GPUs that NVLink connects, and "
                "neither NCCL_WIN_ENABLE=0 nor NCCL_CUMEM_ENABLE=0; set memory = kRegistered");
  }
  return at::for_blob(data, {numel})
      .deleter([block = std::move(block)](void*) mutable { block.reset(); })
      .options(at::TensorOptions(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace tessera::internal::nccl
