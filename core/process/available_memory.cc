#include "tessera/core/process/available_memory.h"

#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tessera::internal {

int64_t available_memory_bytes() {
  constexpr int64_t kKib = 1024;
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string rest;
  std::optional<int64_t> available;
  int64_t swap = 0;
  int64_t number = 0;
  while (file >> name >> number && std::getline(file, rest)) {
    if (name == "MemAvailable:") available = number * kKib;
    if (name == "SwapFree:") swap = number * kKib;
  }
  return available ? *available + swap : std::numeric_limits<int64_t>::max();
}

}  // namespace tessera::internal
