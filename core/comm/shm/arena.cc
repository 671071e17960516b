#include "tessera/core/comm/shm/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/numbers/round_up.h"
#include "tessera/process_group.h"

namespace tessera::internal::shm {
namespace {

// Control blocks fit into the first segment; what comes later shares huge pages.
constexpr int64_t kFirstSegmentBytes = int64_t{1} << 20;
constexpr int64_t kSmallestSegmentBytes = 2 * kHugePageBytes;

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::shared_ptr<Arena>(new Arena()); }

char* Arena::allocate(int64_t bytes) {
  TORCH_CHECK(origin_.is_here(), "[comm] allocate: ", origin_.fork_error("a rank"));
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kPageBytes);
  std::lock_guard<std::mutex> lock(mutex_);
  // The smallest hole that fits: large ones stay whole for large blocks, so a program that repeats
  // itself never grows.
  Region* best = nullptr;
  int64_t best_offset = 0;
  int64_t best_bytes = std::numeric_limits<int64_t>::max();
  for (auto& [address, region] : regions_) {
    for (const auto& [offset, block] : region->blocks) {
      if (block.used || block.size_bytes < rounded || block.size_bytes >= best_bytes) continue;
      best = region.get();
      best_offset = offset;
      best_bytes = block.size_bytes;
    }
  }
  if (best != nullptr) return take(*best, best_offset, rounded);
  auto region = std::make_unique<Region>();
  region->segment = Segment::create(
      std::max(rounded, regions_.empty() ? kFirstSegmentBytes : kSmallestSegmentBytes));
  const int64_t segment_bytes = region->segment->size_bytes();
  region->blocks[0] = {segment_bytes, false};
  reserved_bytes_ += segment_bytes;
  Region& added = *region;
  regions_[added.segment->data()] = std::move(region);
  return take(added, 0, rounded);
}

char* Arena::take(Region& region, int64_t offset, int64_t bytes) {
  Block& block = region.blocks.at(offset);
  if (block.size_bytes > bytes) {
    region.blocks[offset + bytes] = {block.size_bytes - bytes, false};
    block.size_bytes = bytes;
  }
  block.used = true;
  used_bytes_ += bytes;
  return region.segment->data() + offset;
}

void Arena::free(char* data) {
  if (!origin_.is_here()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Region* region = region_of(data);
  if (region == nullptr) return;
  auto& blocks = region->blocks;
  auto block = blocks.find(data - region->segment->data());
  if (block == blocks.end()) return;
  block->second.used = false;
  used_bytes_ -= block->second.size_bytes;
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

Arena::Region* Arena::region_of(const void* data) const {
  const auto* address = static_cast<const char*>(data);
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  Region* region = std::prev(after)->second.get();
  return address < region->segment->data() + region->segment->size_bytes() ? region : nullptr;
}

std::optional<SharedRange> Arena::find(const void* data, int64_t bytes) const {
  if (!origin_.is_here()) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  const Region* region = region_of(data);
  if (region == nullptr) return std::nullopt;
  const int64_t offset = static_cast<const char*>(data) - region->segment->data();
  if (offset + bytes > region->segment->size_bytes()) return std::nullopt;
  return region->segment->range(offset);
}

int64_t Arena::reserved_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_bytes_;
}

int64_t Arena::used_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

}  // namespace tessera::internal::shm
