#include "tessera/bench/macro/train/device_counts.h"

#include <string>

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

namespace bench {

DeviceCounts DeviceCounts::during(at::Device device, const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  at::accelerator::synchronizeDevice(device.index());
  profiler::prepareProfiler(config, {ActivityType::CPU, ActivityType::CUDA});
  profiler::enableProfiler(config, {ActivityType::CPU, ActivityType::CUDA});
  work();
  at::accelerator::synchronizeDevice(device.index());
  const auto result = profiler::disableProfiler();
  DeviceCounts counts;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const std::string name = event.name();
    if (name.starts_with("Memcpy")) {
      ++counts.copies;
    } else if (name.starts_with("Memset")) {
      ++counts.fills;
    } else {
      ++counts.kernels;
    }
  }
  return counts;
}

}  // namespace bench
