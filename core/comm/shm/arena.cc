#include "tessera/core/comm/shm/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "tessera/core/numbers/round_up.h"
#include "tessera/process_group.h"

namespace tessera::internal::shm {
namespace {

/// A segment grows by at least this much, so that several small blocks need only one growth.
/// Growing less often saves time, because each growth looks up the available memory.
constexpr int64_t kStepBytes = int64_t{1} << 20;

/// The first segment has room to grow to at least this size. Room takes address space, but no
/// memory.
constexpr int64_t kSmallestRoomBytes = int64_t{64} << 20;

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::shared_ptr<Arena>(new Arena()); }

char* Arena::allocate(int64_t bytes) {
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kPageBytes);
  std::lock_guard<std::mutex> lock(mutex_);
  // Take the smallest hole that fits, so that large holes stay whole for large blocks. Then a
  // program that repeats its allocations needs no more memory.
  Region* best = nullptr;
  int64_t best_offset = 0;
  int64_t best_bytes = std::numeric_limits<int64_t>::max();
  for (Region& region : regions_) {
    for (const auto& [offset, block] : region.blocks) {
      if (block.used || block.size_bytes < rounded || block.size_bytes >= best_bytes) continue;
      best = &region;
      best_offset = offset;
      best_bytes = block.size_bytes;
    }
  }
  return best != nullptr ? take(*best, best_offset, rounded) : grow(rounded);
}

/// Makes a block at the end of a segment, which grows for it. If the segment ends with a hole, the
/// block begins there.
char* Arena::grow(int64_t bytes) {
  for (Region& region : regions_) {
    const int64_t end = region.memory_bytes();
    const int64_t begin = end - region.last_hole_bytes();
    const int64_t room = region.segment->room_bytes() - end;
    const int64_t missing = bytes - (end - begin);
    if (missing > room) continue;
    const int64_t more = std::min(std::max(missing, kStepBytes), room);
    region.segment->grow(more);
    region.blocks[begin] = {end + more - begin, false};
    return take(region, begin, bytes);
  }
  const int64_t first = std::max(bytes, kStepBytes);
  auto segment = Segment::create(first, std::max(room_bytes_, kSmallestRoomBytes));
  room_bytes_ += segment->room_bytes();
  regions_.push_back({std::move(segment), {{0, {first, false}}}});
  return take(regions_.back(), 0, bytes);
}

int64_t Arena::Region::memory_bytes() const {
  const auto& [offset, block] = *blocks.rbegin();
  return offset + block.size_bytes;
}

int64_t Arena::Region::last_hole_bytes() const {
  const Block& last = blocks.rbegin()->second;
  return last.used ? 0 : last.size_bytes;
}

char* Arena::take(Region& region, int64_t offset, int64_t bytes) {
  Block& block = region.blocks.at(offset);
  if (block.size_bytes > bytes) {
    region.blocks[offset + bytes] = {block.size_bytes - bytes, false};
    block.size_bytes = bytes;
  }
  block.used = true;
  return region.segment->data() + offset;
}

void Arena::free(char* data) {
  if (!origin_.is_here()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Region* const region = region_of(data);
  auto& blocks = region->blocks;
  const auto block = blocks.find(data - region->segment->data());
  block->second.used = false;
  auto next = std::next(block);
  if (next != blocks.end() && !next->second.used) {
    block->second.size_bytes += next->second.size_bytes;
    blocks.erase(next);
  }
  if (block != blocks.begin()) {
    auto before = std::prev(block);
    if (!before->second.used) {
      before->second.size_bytes += block->second.size_bytes;
      blocks.erase(block);
    }
  }
}

at::Tensor Arena::allocate_tensor(int64_t numel, at::ScalarType dtype) {
  char* block = allocate(check_allocate(numel, dtype));
  auto give_back = [arena = shared_from_this()](void* data) {
    arena->free(static_cast<char*>(data));
  };
  return at::from_blob(block, {numel}, std::move(give_back), at::TensorOptions().dtype(dtype));
}

Arena::Region* Arena::region_of(const void* data) {
  const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Region& one) {
    return data >= one.segment->data() && data < one.segment->data() + one.memory_bytes();
  });
  return region == regions_.end() ? nullptr : &*region;
}

std::optional<SharedRange> Arena::find(const void* data, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Region* region = region_of(data);
  if (region == nullptr) return std::nullopt;
  const int64_t offset = static_cast<const char*>(data) - region->segment->data();
  if (offset + bytes > region->memory_bytes()) return std::nullopt;
  return region->segment->range(offset);
}

}  // namespace tessera::internal::shm
