#include "tessera/tests/support/fake_cuda/fake_cuda.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "tessera/core/device/host_device.h"

namespace tessera::testing {
namespace {

int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

int device_count() { return number_of("FAKE_CUDA_DEVICES", 3); }

/// Everything, behind one lock. Never destroyed: stream threads may outlive main().
struct State {
  std::mutex mutex;
  HostDevice host;
  std::map<std::pair<int, int64_t>, std::shared_ptr<tessera::Stream>> streams;  // device, id
  std::vector<bool> priorities;
  std::set<int> contexts;
  int events_made = 0;
  int events_destroyed = 0;
  int events_with_timing = 0;
  int64_t last_stream = 0;

  tessera::Stream& stream(int device, int64_t id) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& stream = streams[{device, id}];
    if (stream == nullptr) stream = host.make_stream(Device::Priority::kUsual);
    return *stream;
  }
};

State& state() {
  static auto* const all = new State();
  return *all;
}

// A device that is current in name only: it was restored and has no context.
thread_local int current = 0;
thread_local std::map<int, int64_t> current_streams;

bool has_context(int device) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().contexts.count(device) != 0;
}

void make_current(int device) {
  if (device == current) return;
  current = device;
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().contexts.insert(device);
}

tessera::Stream& stream_of(const c10::Stream& stream) {
  return state().stream(stream.device_index(), stream.id());
}

/// As CUDAGuardImpl does it, as far as CudaDevice can tell.
struct FakeGuard final : public c10::impl::DeviceGuardImplInterface {
  using Place = c10::Device;

  static Place place(int index) {
    return Place(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  }
  static c10::Stream stream(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, place(device), id);
  }

  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  Place exchangeDevice(Place to) const override {
    const Place old = getDevice();
    make_current(to.index());
    return old;
  }
  Place getDevice() const override { return place(current); }
  void setDevice(Place to) const override { make_current(to.index()); }
  void uncheckedSetDevice(Place to) const noexcept override { current = to.index(); }
  c10::Stream getStream(Place of) const override {
    return stream(of.index(), current_streams[of.index()]);
  }
  c10::Stream getStreamFromGlobalPool(Place of, bool is_high) const override {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.priorities.push_back(is_high);
    return stream(of.index(), ++all.last_stream);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream old = getStream(to.device());
    current_streams[to.device_index()] = to.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream of) const override {
    return stream_of(of).handle();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    const Place old = getDevice();
    setDevice(place(device));
    delete static_cast<std::shared_ptr<Event>*>(event);
    setDevice(old);
    const std::lock_guard<std::mutex> lock(state().mutex);
    ++state().events_destroyed;
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == on.device_index(), "an event of another device");
    const Place old = getDevice();
    setDevice(on.device());
    if (*event == nullptr) {
      *event = new std::shared_ptr<Event>(state().host.make_event());
      const std::lock_guard<std::mutex> lock(state().mutex);
      ++state().events_made;
      if (flag != c10::EventFlag::PYTORCH_DEFAULT) ++state().events_with_timing;
    }
    stream_of(on).record(**static_cast<std::shared_ptr<Event>*>(*event));
    setDevice(old);
  }
  void block(void* event, const c10::Stream& on) const override {
    const Place old = getDevice();
    setDevice(on.device());
    stream_of(on).wait(**static_cast<std::shared_ptr<Event>*>(event));
    setDevice(old);
  }
  bool queryEvent(void* event) const override {
    return (*static_cast<std::shared_ptr<Event>*>(event))->is_done();
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

/// The default ones say that there is no CUDA.
struct FakeHooks : public at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs /*none*/) {}
  void init() const override {}
  bool hasCUDA() const override { return device_count() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return has_context(device); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current);
  }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)

/// Host memory under a device's name.
struct FakeAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = std::malloc(bytes == 0 ? 1 : bytes);
    return {data, data, &std::free, FakeGuard::place(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  static FakeAllocator allocator;
  const int old = current;
  if (device && device->has_index()) make_current(device->index());
  at::Tensor made = at::detail::empty_generic_symint(size, &allocator,
                                                     c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                     dtype.value_or(at::kFloat), format);
  current = old;
  return made;
}

/// On the current stream of the device; waits for it if one side is the host's, as CUDA does for
/// memory that is not pinned.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  TORCH_CHECK(to.is_contiguous() && from.is_contiguous() && to.dtype() == from.dtype() &&
                  to.numel() == from.numel(),
              "the fake copies nothing but bytes");
  const int device = to.is_cuda() ? to.device().index() : from.device().index();
  tessera::Stream& stream = state().stream(device, current_streams[device]);
  stream.copy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<int64_t>(to.nbytes()));
  if (to.is_cuda() && from.is_cuda()) return to;
  std::promise<void> copied;
  HostDevice::run(stream, [&] { copied.set_value(); });
  copied.get_future().wait();
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, kernels) {
  kernels.impl("empty.memory_format", empty);
  kernels.impl("copy_", copy);
}

class Control final : public FakeCuda {
 public:
  std::set<int> contexts() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().contexts;
  }
  void forget_contexts() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().contexts.clear();
  }
  int current_device() override { return current; }
  int events_made() override { return read(state().events_made); }
  int events_destroyed() override { return read(state().events_destroyed); }
  int events_with_timing() override { return read(state().events_with_timing); }
  std::vector<bool> stream_priorities() override {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().priorities;
  }
  void* current_handle(int device) override {
    return state().stream(device, current_streams[device]).handle();
  }

 private:
  static int read(const int& number) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return number;
  }
};

}  // namespace
}  // namespace tessera::testing

// What the real library brings with the CUDA runtime.
extern "C" {

tessera::testing::FakeCuda* tessera_fake_cuda() {
  static tessera::testing::Control control;
  return &control;
}

int cudaGetDeviceCount(int* count) {
  if (std::getenv("FAKE_CUDA_STALLS") != nullptr) ::pause();
  *count = tessera::testing::device_count();
  const int status = tessera::testing::number_of("FAKE_CUDA_STATUS", 0);
  return status == 0 && *count == 0 ? 100 : status;
}

const char* cudaGetErrorString(int error) {
  return error == 100 ? "no CUDA-capable device is detected" : "an error that the fake was told of";
}

int cudaDriverGetVersion(int* version) {
  *version = tessera::testing::number_of("FAKE_CUDA_DRIVER", 13000);
  return 0;
}

int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}

}  // extern "C"
