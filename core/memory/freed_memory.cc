#include "tessera/core/memory/freed_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>

namespace tessera {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1; older C libraries do not know it
#endif

struct AddressRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Where malloc's main heap lies; empty if it has none.
AddressRange heap() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::EndsWith(line, "[heap]")) continue;
    AddressRange range;
    const size_t dash = line.find('-'), space = line.find(' ');
    if (absl::SimpleHexAtoi(line.substr(0, dash), &range.begin) &&
        absl::SimpleHexAtoi(line.substr(dash + 1, space - dash - 1), &range.end)) {
      return range;
    }
  }
  return {};
}

}  // namespace

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
  ::mallopt(M_MMAP_MAX, 0);  // large blocks too come from the heap, which the next line keeps
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void use_huge_pages_in_heap() {
  const AddressRange whole = heap();
  const uint64_t begin = (whole.begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uint64_t end = whole.end / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return;
  auto* const memory = reinterpret_cast<void*>(begin);  // NOLINT(performance-no-int-to-ptr)
  // Refusals cost speed only.
  if (::madvise(memory, end - begin, MADV_HUGEPAGE) == 0) {
    ::madvise(memory, end - begin, MADV_COLLAPSE);
  }
}

}  // namespace tessera
