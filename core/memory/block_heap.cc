#include "tessera/core/memory/block_heap.h"

#include <sys/mman.h>

#include <algorithm>

#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/numbers/round_up.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

constexpr int64_t kBlockAlignmentBytes = 64;
constexpr int64_t kHeadBytes = kBlockAlignmentBytes;  // before each block: holds its size
constexpr int64_t kGrowthBytes = 8 * kHugePageBytes;

int64_t& size_of(char* block) { return *reinterpret_cast<int64_t*>(block - kHeadBytes); }

}  // namespace

BlockHeap::BlockHeap(int64_t reserved_bytes) {
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  reserved_ = reserved;
  reserved_bytes_ = reserved_bytes;
  limit_ = static_cast<char*>(reserved) + reserved_bytes;
  begin_ = std::min(round_up(static_cast<char*>(reserved), kHugePageBytes), limit_);
  end_ = writable_ = begin_;
  holes_.reserve(256);
}

BlockHeap::~BlockHeap() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes_);
}

char* BlockHeap::allocate(int64_t bytes) {
  if (bytes > reserved_bytes_) return nullptr;
  const int64_t whole_bytes = round_up(bytes, kBlockAlignmentBytes) + kHeadBytes;
  const std::lock_guard lock(mutex_);
  const auto hole = std::find_if(holes_.begin(), holes_.end(),
                                 [&](const Hole& each) { return each.bytes >= whole_bytes; });
  char* place = nullptr;
  if (hole == holes_.end()) {
    place = grow(whole_bytes);
    if (place == nullptr) return nullptr;
  } else {
    place = hole->begin;
    hole->begin += whole_bytes;
    hole->bytes -= whole_bytes;
    if (hole->bytes == 0) holes_.erase(hole);
  }
  char* const block = place + kHeadBytes;
  size_of(block) = whole_bytes;
  return block;
}

/// Takes a block of `bytes` bytes at the end of the heap. If the heap ends in a hole, the memory
/// begins with that hole, and the heap grows only by what is missing.
char* BlockHeap::grow(int64_t bytes) {
  const bool ends_in_hole = !holes_.empty() && holes_.back().begin + holes_.back().bytes == end_;
  char* const place = ends_in_hole ? holes_.back().begin : end_;
  if (limit_ - place < bytes) return nullptr;
  char* const end = place + bytes;
  if (end > writable_) {
    char* const writable = std::min(round_up(end, kGrowthBytes), limit_);
    if (::mprotect(writable_, writable - writable_, PROT_READ | PROT_WRITE) != 0) return nullptr;
    writable_ = writable;
  }
  if (ends_in_hole) holes_.pop_back();
  end_ = end;
  return place;
}

void BlockHeap::free(char* block) {
  TESSERA_DCHECK(contains(block));
  const std::lock_guard lock(mutex_);
  add_hole({.begin = block - kHeadBytes, .bytes = size_of(block)});
}

void BlockHeap::add_hole(Hole hole) {
  const auto next =
      std::lower_bound(holes_.begin(), holes_.end(), hole.begin,
                       [](const Hole& each, const char* address) { return each.begin < address; });
  const bool joins_next = next != holes_.end() && hole.begin + hole.bytes == next->begin;
  const bool joins_previous =
      next != holes_.begin() && std::prev(next)->begin + std::prev(next)->bytes == hole.begin;
  if (joins_previous) {
    std::prev(next)->bytes += hole.bytes + (joins_next ? next->bytes : 0);
    if (joins_next) holes_.erase(next);
  } else if (joins_next) {
    *next = {.begin = hole.begin, .bytes = hole.bytes + next->bytes};
  } else {
    holes_.insert(next, hole);
  }
}

bool BlockHeap::contains(const void* memory) const { return begin_ <= memory && memory < limit_; }

void BlockHeap::give_back() {
  const std::lock_guard lock(mutex_);
  for (const Hole& hole : holes_) {
    char* const begin = round_up(hole.begin, kHugePageBytes);
    const int64_t bytes = hole.begin + hole.bytes - begin;
    if (bytes >= kHugePageBytes) {
      ::madvise(begin, bytes / kHugePageBytes * kHugePageBytes, MADV_DONTNEED);
    }
  }
}

void BlockHeap::grow_in_huge_pages() {
  const std::lock_guard lock(mutex_);
  char* const rest = std::min(round_up(end_, kHugePageBytes), limit_);
  use_huge_pages(rest, limit_ - rest);
}

int64_t BlockHeap::grown_bytes() const {
  const std::lock_guard lock(mutex_);
  return end_ - begin_;
}

}  // namespace tessera::internal
