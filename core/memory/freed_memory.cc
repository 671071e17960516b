#include "tessera/core/memory/freed_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "tessera/core/memory/block_heap.h"
#include "tessera/core/memory/huge_pages.h"

namespace tessera::internal {
namespace {

struct AddressRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Returns the addresses of malloc's main heap; empty if it has none.
AddressRange heap() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::EndsWith(line, "[heap]")) continue;
    // "<begin>-<end> ...". Ubuntu 22.04's Abseil has no absl::SimpleHexAtoi.
    AddressRange range;
    const char* const end = line.data() + line.size();
    const auto begin_read = std::from_chars(line.data(), end, range.begin, 16);
    if (begin_read.ec != std::errc() || begin_read.ptr == end || *begin_read.ptr != '-') continue;
    if (std::from_chars(begin_read.ptr + 1, end, range.end, 16).ec == std::errc()) return range;
  }
  return {};
}

/// Returns the heap of large tensors. Never destroyed, because tensors may outlive any static
/// object.
BlockHeap& block_heap() {
  static auto* const heap = [] {
    auto* const made =
        new BlockHeap(static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE));
    made->hold_across_forks();
    return made;
  }();
  return *heap;
}

/// Takes large tensors from the block heap; all others, and those for which the block heap has no
/// room, come from LibTorch's allocator. Reports both to profilers.
class KeepingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kBlockBytes) {
      if (void* block = block_heap().allocate(static_cast<int64_t>(bytes)); block != nullptr) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  /// Frees raw pointers of either origin.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr size_t kBlockBytes = size_t{64} << 10;

  static void release(void* block) {
    if (block_heap().contains(block)) {
      c10::profiledCPUMemoryReporter().Delete(block);
      block_heap().free(static_cast<char*>(block));
    } else {
      c10::GetDefaultCPUAllocator()->raw_deleter()(block);
    }
  }
};

void keep_tensor_memory() {
#ifndef __SANITIZE_ADDRESS__  // the sanitizer sees more in malloc's blocks
  // The allocator is installed already, or the user has set one.
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
  static auto* const allocator = new KeepingAllocator;
  c10::SetCPUAllocator(allocator);
#endif
}

/// Returns true if most small pages of the huge page's range at `memory` are resident. Moving the
/// range into a huge page then takes little more memory.
bool is_mostly_resident(char* memory) {
  const auto pages = static_cast<uint64_t>(kHugePageBytes / ::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> residency(pages);
  if (::mincore(memory, kHugePageBytes, residency.data()) != 0) return false;
  uint64_t resident = 0;
  for (const unsigned char page : residency) resident += page & 1;
  return resident * 16 >= pages * 15;
}

using Clock = std::chrono::steady_clock;

/// How far each heap was moved into huge pages since memory was last returned to the system. Memory
/// below these addresses is in huge pages already, so ranks that are threads, or a second engine,
/// do not move it again.
struct MovedEnds {
  std::atomic<uint64_t> heap = 0;
  std::atomic<uint64_t> blocks = 0;
};
MovedEnds moved_ends;

/// Moves what `whole` holds after `moved_end` into huge pages, one page after the other until
/// `deadline`, and advances `moved_end`. Passes over ranges that are not is_mostly_resident(). If
/// the heap fills its last huge page only in part, leaves that page for a later call. Returns true
/// if it reached the end.
bool move_what_grew(const AddressRange& whole, std::atomic<uint64_t>& moved_end,
                    Clock::time_point deadline) {
  constexpr uint64_t kStep = kHugePageBytes;
  const uint64_t first = (whole.begin + kStep - 1) / kStep * kStep;
  for (uint64_t moved = moved_end;;) {
    const uint64_t at = std::max(first, moved);
    if (at + kStep > whole.end) return true;
    if (!moved_end.compare_exchange_weak(moved, at + kStep)) continue;
    auto* const memory = reinterpret_cast<char*>(at);  // NOLINT(performance-no-int-to-ptr)
    if (is_mostly_resident(memory)) move_into_huge_pages(memory, kHugePageBytes);
    if (Clock::now() >= deadline) return false;
    moved = moved_end;
  }
}

}  // namespace

void keep_freed_memory(int64_t unused_bytes) {
  keep_tensor_memory();
  const bool is_worth_a_walk = unused_bytes >= kHugePageBytes;
  if (is_worth_a_walk) {
    moved_ends.heap = 0;
    moved_ends.blocks = 0;
    block_heap().give_back();
  }
#if defined(__GLIBC__)
  // One thread at a time makes these calls. If another malloc replaces glibc's, the first call
  // initialises glibc's heap, and two first calls at the same time (from ranks that are threads)
  // would make glibc fail an assertion when the threads exit.
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  if (is_worth_a_walk) ::malloc_trim(0);
  ::mallopt(M_MMAP_MAX, 0);  // large blocks also come from the heap, which the next line keeps
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

bool use_huge_pages_in_heap(std::chrono::nanoseconds at_most) {
  const Clock::time_point deadline = Clock::now() + at_most;
  if (!move_what_grew(heap(), moved_ends.heap, deadline)) return false;
  const auto begin = reinterpret_cast<uint64_t>(block_heap().begin());
  const uint64_t end = begin + static_cast<uint64_t>(block_heap().grown_bytes());
  if (!move_what_grew({.begin = begin, .end = end}, moved_ends.blocks, deadline)) return false;
  block_heap().grow_in_huge_pages();
  return true;
}

void HugePagePace::after_step() {
  if (is_done_) return;
  const auto now = Clock::now();
  // From the second step on, each step allocates the same tensors as the one before.
  if (++steps_ >= 2) is_done_ = use_huge_pages_in_heap((now - last_) / kShare);
  last_ = Clock::now();
}

}  // namespace tessera::internal
