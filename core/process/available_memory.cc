#include "tessera/core/process/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "tessera/core/process/control_groups.h"

namespace tessera::internal {
namespace {

// A larger limit is taken as "no limit": version 1 of control groups has no word for that, and
// writes the largest multiple of the page size instead.
constexpr int64_t kLargestLimit = int64_t{1} << 60;

std::optional<int64_t> bytes_at(const std::string& path) {
  int64_t bytes = -1;
  if (!(std::ifstream(path) >> bytes) || bytes < 0 || bytes > kLargestLimit) return std::nullopt;
  return bytes;
}

/// Reads the file `name` in `folder` (control groups version 2) or, if it does not exist, the file
/// `old_name` (version 1).
std::optional<int64_t> bytes_at(const std::string& folder, const char* name, const char* old_name) {
  const auto bytes = bytes_at(folder + name);
  return bytes ? bytes : bytes_at(folder + old_name);
}

/// Returns the number of bytes that the kernel can reclaim from a control group and its subgroups:
/// file pages and slabs. Pages of shared memory do not count, because the kernel can only swap them
/// out.
int64_t reclaimable_bytes(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  int64_t bytes = 0;
  int64_t sum = 0;
  // Under version 1 of control groups, `sum` does not include the subgroups; `total` does.
  int64_t total = 0;
  while (file >> name >> bytes) {
    if (bytes < 0 || bytes > kLargestLimit) continue;
    if (name == "inactive_file" || name == "active_file" || name == "slab_reclaimable") {
      sum += bytes;
    } else if (name == "total_inactive_file" || name == "total_active_file") {
      total += bytes;
    }
  }
  return std::max(sum, total);
}

int64_t host_bytes(const std::string& root) {
  constexpr int64_t kKib = 1024;
  std::ifstream file(root + "/proc/meminfo");
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

}  // namespace

int64_t available_memory_bytes(const std::string& root) {
  int64_t least = host_bytes(root);
  for (const std::string& folder : control_group_folders("memory", root)) {
    const auto limit = bytes_at(folder, "/memory.max", "/memory.limit_in_bytes");
    if (!limit) continue;
    const auto used = bytes_at(folder, "/memory.current", "/memory.usage_in_bytes");
    if (!used) continue;
    const int64_t kept = std::max<int64_t>(*used - reclaimable_bytes(folder), 0);
    least = std::min(least, std::max<int64_t>(*limit - kept, 0));
  }
  return least;
}

}  // namespace tessera::internal
