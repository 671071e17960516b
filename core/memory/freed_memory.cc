#include "tessera/core/memory/freed_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>

#include "tessera/core/memory/huge_pages.h"

namespace tessera {
namespace {

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

/// Whether a huge page here would take up hardly more memory than the pages that are there.
bool is_mostly_resident(char* memory) {
  const auto pages = static_cast<uint64_t>(kHugePageBytes / ::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> residency(pages);
  if (::mincore(memory, kHugePageBytes, residency.data()) != 0) return false;
  uint64_t resident = 0;
  for (const unsigned char page : residency) resident += page & 1;
  return resident * 16 >= pages * 15;
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
  constexpr uint64_t kStep = kHugePageBytes;
  const uint64_t begin = (whole.begin + kStep - 1) / kStep * kStep;
  for (uint64_t at = begin; at + kStep <= whole.end; at += kStep) {
    auto* const memory = reinterpret_cast<char*>(at);  // NOLINT(performance-no-int-to-ptr)
    if (is_mostly_resident(memory)) move_into_huge_pages(memory, kHugePageBytes);
  }
}

}  // namespace tessera
