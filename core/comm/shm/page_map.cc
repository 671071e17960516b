#include "tessera/core/comm/shm/page_map.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <c10/util/Exception.h>

#include "tessera/core/process/standard_streams.h"

namespace tessera::internal::shm {
namespace {

constexpr const char* kPath = "/proc/self/pagemap";

// Bit 63: present, 62: swapped out, 61: belongs to a file or to shared memory.
// Source: Documentation/admin-guide/mm/pagemap.rst.
bool is_copied(uint64_t word) {
  constexpr uint64_t kThere = uint64_t{3} << 62;
  constexpr uint64_t kOfFile = uint64_t{1} << 61;
  return (word & kThere) != 0 && (word & kOfFile) == 0;
}

}  // namespace

PageMap::PageMap() : fd_(above_standard_streams(::open(kPath, O_RDONLY | O_CLOEXEC))) {
  TORCH_CHECK(fd_.is_open(), "[comm] page map: got no access to ", kPath, " (",
              std::strerror(errno),
              "), expected the kernel's list of pages; mount /proc, or allow"
              " more descriptors (ulimit -n)");
}

int64_t PageMap::next_copied(const char* memory, int64_t page, int64_t pages) const {
  constexpr auto kWordBytes = static_cast<int64_t>(sizeof(uint64_t));
  const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory)) / page_bytes();
  std::array<uint64_t, 4096> words;
  while (page < pages) {
    const int64_t wanted = std::min<int64_t>(pages - page, words.size()) * kWordBytes;
    const ssize_t got = ::pread(fd_.get(), words.data(), wanted, (first + page) * kWordBytes);
    TORCH_CHECK(got >= kWordBytes, "[comm] page map: got ", got, " bytes of ", kPath,
                ", expected up to ", wanted,
                "; without it a write to shared parameters goes unseen. Leave the descriptor open, "
                "or set Options::share_parameters = false");
    const auto* const end = words.cbegin() + got / kWordBytes;
    const auto* const found = std::find_if(words.cbegin(), end, is_copied);
    page += found - words.cbegin();
    if (found != end) return page;
  }
  return pages;
}

int64_t PageMap::page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace tessera::internal::shm
