#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/core/device/device.h"

namespace tessera::internal {

/// Returns the interface that LibTorch's CUDA half registers with its CPU half. The CUDA half must
/// be loaded.
const c10::impl::DeviceGuardImplInterface& cuda_interface();

/// A GPU, used through the device guard that LibTorch's CUDA half registers with c10. Needs no
/// header or symbol of CUDA, so this compiles, links and starts on machines without CUDA. Streams
/// are LibTorch's: the current stream is the one that LibTorch's operators use on the calling
/// thread, and new streams come from LibTorch's pools (32 per priority, then the same streams
/// again). Events have no timing. Memory comes from the caching allocator.
///
/// Note [Current device]
/// ~~~~~~~~~~~~~~~~~~~~~
/// CUDA has a current device per thread, initially 0, and making a device current, even briefly,
/// creates a context there. A thread that forgets to set its device would cost 500 MB on GPU 0 for
/// each rank of a host. So every call here restores the calling thread's device, creates no context
/// except on this device, and may come from any thread.
class CudaDevice final : public Device {
 public:
  /// Uses GPU `index`. Throws c10::Error unless load_cuda_library() has succeeded and there is such
  /// a GPU.
  explicit CudaDevice(c10::DeviceIndex index);

  /// Local. Creates the context, which takes a fraction of a second, and makes the device the
  /// calling thread's current one. Throws c10::Error if it cannot be used.
  void make_current();

  at::Device torch_device() const override { return device_; }
  std::shared_ptr<Stream> current_stream() override;
  std::shared_ptr<Stream> make_stream(Priority priority) override;
  std::shared_ptr<Event> make_event() override;
  std::shared_ptr<void> use(Stream& stream) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override;

 private:
  const at::Device device_;
};

}  // namespace tessera::internal
