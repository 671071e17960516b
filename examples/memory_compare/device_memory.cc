#include "tessera/examples/memory_compare/device_memory.h"

#include <cstddef>

#include <c10/core/CachingDeviceAllocator.h>

namespace memory_compare {

DeviceMemory DeviceMemory::of(at::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& bytes =
      stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {.now_bytes = bytes.current, .peak_bytes = bytes.peak};
}

void DeviceMemory::restart_peak(at::Device device) {
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace memory_compare
