#include "tessera/examples/memory_compare/device_memory.h"

#include <cstddef>

#include <c10/core/CachingDeviceAllocator.h>

namespace memory_compare {

DeviceMemory DeviceMemory::of(at::Device place) {
  const auto stats = c10::getDeviceAllocator(place.type())->getDeviceStats(place.index());
  const auto& bytes =
      stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {.now_bytes = bytes.current, .peak_bytes = bytes.peak};
}

void DeviceMemory::restart_peak(at::Device place) {
  c10::getDeviceAllocator(place.type())->resetPeakStats(place.index());
}

}  // namespace memory_compare
