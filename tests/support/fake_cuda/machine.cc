#include "tessera/tests/support/fake_cuda/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

namespace tessera::internal::testing {
namespace {

// The device may be current in name only: restored, without a context.
thread_local int current_device = 0;
thread_local std::array<int64_t, Machine::kMaxDevices> current_streams{};

}  // namespace

int64_t number_of(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

Machine& Machine::get() {
  static auto* const machine = new Machine();
  return *machine;
}

Machine::Machine()
    : host_({.longest_delay = std::chrono::microseconds(number_of("FAKE_CUDA_DELAY_US", 0)),
             .seed = static_cast<uint64_t>(number_of("FAKE_CUDA_DELAY_SEED", 1))}) {}

int Machine::device_count() {
  return std::min(static_cast<int>(number_of("FAKE_CUDA_DEVICES", 3)), kMaxDevices);
}

int Machine::current() { return current_device; }

void Machine::make_current(int device) {
  if (device == current_device) return;
  TORCH_CHECK(device >= 0 && device < device_count(), "CUDA error: invalid device ordinal");
  current_device = device;
  make_context(device);
}

void Machine::restore_current(int device) { current_device = device; }

void Machine::make_context(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  contexts_.insert(device);
}

bool Machine::has_context(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return contexts_.count(device) != 0;
}

std::set<int> Machine::contexts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return contexts_;
}

void Machine::forget_contexts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  contexts_.clear();
}

c10::Stream Machine::current_stream(int device) {
  return stream(device, current_streams[static_cast<size_t>(device)]);
}

void Machine::set_current_stream(c10::Stream stream) {
  current_streams[static_cast<size_t>(stream.device_index())] = stream.id();
}

c10::Stream Machine::next_stream(int device, bool is_high_priority) {
  const std::lock_guard<std::mutex> lock(mutex_);
  priorities_.push_back(is_high_priority);
  const int64_t number = handed_out_[{device, is_high_priority}]++ % kPool;
  return stream(device, 1 + number + (is_high_priority ? kPool : 0));
}

DeviceStream& Machine::queue(c10::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& queue = streams_[{stream.device_index(), stream.id()}];
  if (queue == nullptr) {
    queue = std::make_unique<DeviceStream>(
        host_.make_stream(Device::Priority::kDefault),
        stream.id() == 0 ? DeviceStream::Kind::kDefault : DeviceStream::Kind::kOther);
  }
  return *queue;
}

std::vector<DeviceStream*> Machine::queues(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<DeviceStream*> found;
  for (const auto& [key, queue] : streams_) {
    if (key.first == device) found.push_back(queue.get());
  }
  return found;
}

std::vector<bool> Machine::priorities() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return priorities_;
}

const at::Generator& Machine::generator(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  at::Generator& generator = generators_[static_cast<size_t>(device)];
  if (!generator.defined()) generator = at::detail::createCPUGenerator();
  return generator;
}

}  // namespace tessera::internal::testing
