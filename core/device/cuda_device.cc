#include "tessera/core/device/cuda_device.h"

#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

const c10::impl::DeviceGuardImplInterface& cuda_interface() {
  return *c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
}

namespace {

/// While it lives, `device` is the calling thread's current one; see Note [Current device]. Used
/// for events, too: a c10::Event would switch to its device itself, but the calls that it makes for
/// that create contexts.
class OnDevice {
 public:
  explicit OnDevice(at::Device device) {
    // getDevice() is cheap. The guard is not: before it restores a device, it asks the driver
    // whether that device has a context.
    if (cuda_interface().getDevice() != device) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

/// An event that one thread may poll while another records it. The mutex is needed because c10's
/// event may be used by one thread at a time only.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(at::Device device) : device_(device) { event_.emplace(device.type()); }

  ~CudaEvent() override {
    try {
      const OnDevice here(device_);
      event_.reset();
    } catch (...) {  // a failed device does not need its event back
    }
  }

  bool is_done() override {
    const OnDevice here(device_);
    const std::lock_guard<std::mutex> lock(mutex_);
    return event_->query();
  }

  // Waits without the lock, so that other threads which call is_done() or record() meanwhile do not
  // block.
  void synchronize() override {
    const OnDevice here(device_);
    event_->synchronize();
  }

  void record(const c10::Stream& stream) {
    const OnDevice here(device_);
    const std::lock_guard<std::mutex> lock(mutex_);
    event_->record(stream);
  }

  void block(const c10::Stream& stream) {
    const OnDevice here(device_);
    const std::lock_guard<std::mutex> lock(mutex_);
    event_->block(stream);
  }

 private:
  const at::Device device_;
  std::mutex mutex_;
  std::optional<c10::Event> event_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(c10::Stream stream) : stream_(stream) {}

  void record(Event& event) override { static_cast<CudaEvent&>(event).record(stream_); }
  void wait(Event& event) override { static_cast<CudaEvent&>(event).block(stream_); }

  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    const c10::StreamGuard guard(stream_);
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    // Naming the device saves LibTorch a driver query.
    const auto bytes_at = [&](void* data) {
      return at::for_blob(data, {bytes})
          .options(at::TensorOptions(at::kByte).device(stream_.device()))
          .target_device(stream_.device())
          .make_tensor();
    };
    bytes_at(to).copy_(bytes_at(const_cast<void*>(from)), /*non_blocking=*/true);
  }

  void copy(const at::Tensor& to, const at::Tensor& from) override {
    if (to.numel() == 0) return;
    const c10::StreamGuard guard(stream_);
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    to.copy_(from, /*non_blocking=*/true);
  }

  void* handle() override { return stream_.native_handle(); }
  const c10::Stream& stream() const { return stream_; }

 private:
  const c10::Stream stream_;
};

}  // namespace

CudaDevice::CudaDevice(c10::DeviceIndex index) : device_(c10::DeviceType::CUDA, index) {
  TORCH_CHECK(c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA),
              "[device] cuda: got a process without LibTorch's CUDA half, expected it; call"
              " load_cuda_library() first");
  const int count = cuda_interface().deviceCount();
  TORCH_CHECK(index >= 0 && index < count, "[device] cuda: got index ", static_cast<int>(index),
              ", expected 0 <= index < ", count, ", the number of GPUs that this process sees");
}

void CudaDevice::make_current() {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  cuda_interface().setDevice(device_);
}

std::shared_ptr<Stream> CudaDevice::current_stream() {
  return std::make_shared<CudaStream>(cuda_interface().getStream(device_));
}

std::shared_ptr<Stream> CudaDevice::make_stream(Priority priority) {
  const OnDevice here(device_);
  return std::make_shared<CudaStream>(
      cuda_interface().getStreamFromGlobalPool(device_, priority == Priority::kHigh));
}

std::shared_ptr<Event> CudaDevice::make_event() { return std::make_shared<CudaEvent>(device_); }

std::shared_ptr<void> CudaDevice::use(Stream& stream) {
  return std::make_shared<c10::StreamGuard>(static_cast<CudaStream&>(stream).stream());
}

std::shared_ptr<void> Device::use(Stream& /*stream*/) {
  TORCH_CHECK(false, "[device] use: got a device of one current stream at ", torch_device().str(),
              ", expected a GPU (cuda)");
}

at::Tensor CudaDevice::allocate(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions(dtype).device(device_));
}

at::Tensor CudaDevice::allocate_on_host(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions(dtype).pinned_memory(true));
}

std::shared_ptr<Device> device_at(at::Device device) {
  TORCH_CHECK(device.is_cuda(), "[device] device: got ", device.str(), ", expected a GPU (cuda)");
  return std::make_shared<CudaDevice>(device.index());
}

}  // namespace tessera::internal
