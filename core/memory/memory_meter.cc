#include "tessera/memory_meter.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace tessera {
namespace {

/// Returns the value of `key` in the kernel's summary of this process's memory; -1 if it has none.
int64_t proportional_bytes(std::string_view key) {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return -1;
}

}  // namespace

std::string_view to_string(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kParameters:
      return "parameters";
    case MemoryClass::kGradients:
      return "gradients";
    case MemoryClass::kOptimizer:
      return "optimizer";
    case MemoryClass::kUnshardedParameters:
      return "unsharded parameters";
    case MemoryClass::kRoot:
      return "root";
    case MemoryClass::kGradientBuffers:
      return "gradient buffers";
    case MemoryClass::kControl:
      return "control";
    case MemoryClass::kHost:
      return "host";
  }
  return "unknown memory class";
}

int64_t MemoryBytes::total() const {
  return std::accumulate(by_class.begin(), by_class.end(), int64_t{0});
}

void MemoryMeter::add(MemoryClass memory_class, int64_t bytes) {
  TORCH_CHECK(bytes >= 0, "[memory] bytes: got ", bytes, ", expected at least 0");
  const std::lock_guard lock(mutex_);
  ++allocations_;
  now_[memory_class] += bytes;
  peak_[memory_class] = std::max(peak_[memory_class], now_[memory_class]);
  peak_total_bytes_ = std::max(peak_total_bytes_, now_.total());
}

void MemoryMeter::remove(MemoryClass memory_class, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(bytes >= 0 && bytes <= now_[memory_class], "[memory] ",
              std::string(to_string(memory_class)), ": got ", bytes,
              " bytes to remove, expected at most ", now_[memory_class]);
  now_[memory_class] -= bytes;
}

MemoryBytes MemoryMeter::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

MemoryBytes MemoryMeter::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

int64_t MemoryMeter::peak_total_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_total_bytes_;
}

void MemoryMeter::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = now_;
  peak_total_bytes_ = now_.total();
}

int64_t MemoryMeter::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

int64_t process_pss_bytes() { return proportional_bytes("Pss:"); }

int64_t process_shared_bytes() { return proportional_bytes("Pss_Shmem:"); }

}  // namespace tessera
