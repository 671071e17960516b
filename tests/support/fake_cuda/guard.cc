// c10's device guard and LibTorch's hooks for the fake GPUs.
#include <memory>
#include <utility>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/machine.h"
#include "tessera/tests/support/fake_cuda/memory.h"
#include "tessera/tests/support/fake_cuda/operator_call.h"

namespace tessera::internal::testing {
namespace {

/// A CUDA event: a mark in a stream, and when the stream reached it.
struct FakeEvent {
  int device;
  std::shared_ptr<Event> mark;
  std::shared_ptr<std::atomic<int64_t>> reached_ns = std::make_shared<std::atomic<int64_t>>(0);
};

FakeEvent& event_at(void* event) { return *static_cast<FakeEvent*>(event); }

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Behaves as CUDAGuardImpl, as far as callers can observe.
struct FakeGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device old = getDevice();
    machine().make_current(to.index());
    return old;
  }
  c10::Device getDevice() const override { return Machine::torch_device(Machine::current()); }
  void setDevice(c10::Device to) const override { machine().make_current(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    Machine::restore_current(to.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(Machine::device_count());
  }

  c10::Stream getStream(c10::Device of) const override {
    return Machine::current_stream(of.has_index() ? of.index() : Machine::current());
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return Machine::stream(of.index(), 0);
  }
  c10::Stream getNewStream(c10::Device of, int priority) const override {
    return machine().next_stream(of.index(), priority < 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool is_high) const override {
    return machine().next_stream(of.has_index() ? of.index() : Machine::current(), is_high);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream old = getStream(to.device());
    Machine::set_current_stream(to);
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream of) const override {
    return machine().queue(of).handle();
  }
  bool queryStream(const c10::Stream& of) const override {
    machine().queue(of).check_on_host();
    return machine().queue(of).is_idle();
  }
  void synchronizeStream(const c10::Stream& of) const override {
    count_host_sync(of.device_index());
    machine().queue(of).drain();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    count_host_sync(device);
    for (DeviceStream* queue : machine().queues(device)) queue->drain();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    DeviceMemory::get().recordStream(data, stream);
  }

  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) return;
    const c10::Device old = getDevice();
    setDevice(Machine::torch_device(device));
    Capture::forget(*event_at(event).mark);
    delete &event_at(event);
    setDevice(old);
    ++machine().events_destroyed;
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == on.device_index(), "an event of another device");
    const c10::Device old = getDevice();
    setDevice(on.device());
    const bool has_timing = flag != c10::EventFlag::PYTORCH_DEFAULT;
    if (*event == nullptr) {
      *event = new FakeEvent{on.device_index(), machine().make_event()};
      ++machine().events_made;
      if (has_timing) ++machine().events_with_timing;
    }
    DeviceStream& queue = machine().queue(on);
    if (has_timing) {
      queue.run([at = event_at(*event).reached_ns] { at->store(now_ns()); });
    }
    queue.record(*event_at(*event).mark);
    setDevice(old);
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event == nullptr) return;
    const c10::Device old = getDevice();
    setDevice(on.device());
    machine().queue(on).wait(*event_at(event).mark);
    setDevice(old);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    Capture::check_on_host(*event_at(event).mark);
    return event_at(event).mark->is_done();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    Capture::check_on_host(*event_at(event).mark);
    count_host_sync(event_at(event).device);
    event_at(event).mark->synchronize();
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(queryEvent(from) && queryEvent(to), "CUDA error: device not ready");
    return static_cast<double>(*event_at(to).reached_ns - *event_at(from).reached_ns) * 1e-6;
  }

 private:
  static Machine& machine() { return Machine::get(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

/// Replaces LibTorch's default hooks, which say that there is no CUDA.
struct FakeHooks : public at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs /*none*/) {}
  void init() const override {}
  bool hasCUDA() const override { return Machine::device_count() > 0; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Machine::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return Machine::get().has_context(device);
  }
  int getNumGPUs() const override { return Machine::device_count(); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(Machine::device_count());
  }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(Machine::current());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Machine::get().make_current(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = getCurrentDevice();
    Machine::get().make_current(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = getCurrentDevice();
    Machine::restore_current(device);
    return old;
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->synchronizeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return Machine::get().generator(device < 0 ? Machine::current() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return getDefaultGenerator(device).clone();
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto device = DeviceMemory::get().device_of(data);
    TORCH_CHECK(device.has_value(),
                "The specified pointer resides on host memory and is not "
                "registered with any CUDA device.");
    return Machine::torch_device(*device);
  }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::get().contains(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &DeviceMemory::get(); }
  std::string showConfig() const override { return "a fake"; }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)

}  // namespace
}  // namespace tessera::internal::testing
