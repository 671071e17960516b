#include "tessera/tests/support/fake_cuda/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace tessera::internal::testing {
namespace {

constexpr size_t kAlignment = 512;
constexpr int kPoison = 0xFF;
constexpr size_t kMaxQuarantineBytes = size_t{64} << 20;

size_t capacity_bytes() {
  return static_cast<size_t>(number_of("FAKE_CUDA_MEMORY_BYTES", int64_t{80} << 30));
}

size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* allocate_on_host(size_t bytes) {
  void* data = nullptr;
  TORCH_CHECK(::posix_memalign(&data, kAlignment, round_up(bytes)) == 0, "no memory for ", bytes,
              " bytes");
  std::memset(data, kPoison, bytes);
  return data;
}

using c10::CachingAllocator::StatArray;

template <typename Change>
void change(StatArray& stats, bool is_large, Change apply) {
  apply(stats[0]);
  apply(stats[is_large ? 2 : 1]);
}

template <typename Change>
void change_all(c10::CachingDeviceAllocator::DeviceStats& stats, Change apply) {
  for (StatArray* array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                           &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) apply(stat);
  }
}

c10::AllocatorRegisterer<c10::DeviceType::CUDA> registered(&DeviceMemory::get());

}  // namespace

DeviceMemory& DeviceMemory::get() {
  static auto* const memory = new DeviceMemory();
  return *memory;
}

c10::DataPtr DeviceMemory::allocate(size_t bytes) {
  const int device = Machine::current();
  Machine::get().make_context(device);
  if (bytes == 0) return {nullptr, nullptr, &release, Machine::torch_device(device)};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_[static_cast<size_t>(device)];
    if (stats.allocated_bytes[0].current + round_up(bytes) > capacity_bytes()) {
      ++stats.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                       " bytes. GPU ", device, " has a total capacity of ", capacity_bytes(),
                       " bytes");
    }
  }
  void* data = allocate_on_host(bytes);
  add({.data = data,
       .bytes = bytes,
       .rounded_bytes = round_up(bytes),
       .device = device,
       .streams = {&Machine::get().current_queue(device)},
       .adopted = {},
       .capture = {}});
  return {data, data, &release, Machine::torch_device(device)};
}

c10::DataPtr DeviceMemory::adopt(const c10::Storage& storage, int device) {
  void* data = const_cast<void*>(storage.data());
  if (data == nullptr) return {nullptr, nullptr, &release, Machine::torch_device(device)};
  Machine::get().make_context(device);
  add({.data = data,
       .bytes = storage.nbytes(),
       .rounded_bytes = round_up(storage.nbytes()),
       .device = device,
       .streams = {&Machine::get().current_queue(device)},
       .adopted = storage,
       .capture = {}});
  return {data, data, &release, Machine::torch_device(device)};
}

void DeviceMemory::copy_data(void* to, const void* from, size_t bytes) const {
  Machine& machine = Machine::get();
  machine.current_queue(Machine::current()).drain();
  std::memcpy(to, from, bytes);
}

void DeviceMemory::add(Block block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& stats = stats_[static_cast<size_t>(block.device)];
  const bool is_large = block.rounded_bytes > (size_t{1} << 20);
  const auto one = [](auto& stat) { stat.increase(1); };
  const auto rounded = [&](auto& stat) { stat.increase(block.rounded_bytes); };
  change(stats.allocation, is_large, one);
  change(stats.active, is_large, one);
  change(stats.segment, is_large, one);
  change(stats.allocated_bytes, is_large, rounded);
  change(stats.active_bytes, is_large, rounded);
  change(stats.reserved_bytes, is_large, rounded);
  change(stats.requested_bytes, is_large, [&](auto& stat) { stat.increase(block.bytes); });
  ++stats.num_device_alloc;
  if (const auto capture = block.streams.back()->capture()) {
    capture->add_memory(block.data, block.bytes);
    block.capture = capture;
  }
  const void* data = block.data;
  blocks_[data] = std::make_shared<Block>(std::move(block));
}

void DeviceMemory::release(void* data) {
  if (data == nullptr) return;
  DeviceMemory& memory = get();
  std::shared_ptr<Block> block;
  {
    const std::lock_guard<std::mutex> lock(memory.mutex_);
    const auto found = memory.blocks_.find(data);
    if (found == memory.blocks_.end()) std::abort();  // freed twice, or not ours
    block = std::move(found->second);
    memory.blocks_.erase(found);
    auto& stats = memory.stats_[static_cast<size_t>(block->device)];
    const bool is_large = block->rounded_bytes > (size_t{1} << 20);
    const auto one = [](auto& stat) { stat.decrease(1); };
    const auto rounded = [&](auto& stat) { stat.decrease(block->rounded_bytes); };
    change(stats.allocation, is_large, one);
    change(stats.active, is_large, one);
    change(stats.segment, is_large, one);
    change(stats.allocated_bytes, is_large, rounded);
    change(stats.active_bytes, is_large, rounded);
    change(stats.reserved_bytes, is_large, rounded);
    change(stats.requested_bytes, is_large, [&](auto& stat) { stat.decrease(block->bytes); });
    ++stats.num_device_free;
  }
  if (const auto capture = block->capture.lock()) {
    return capture->keep(
        std::shared_ptr<void>(nullptr, [block](void* /*none*/) { get().free_behind(block, 0); }));
  }
  memory.free_behind(std::move(block), 0);
}

void DeviceMemory::free_behind(std::shared_ptr<Block> block, size_t stream) {
  while (stream < block->streams.size() && block->streams[stream]->is_idle()) ++stream;
  if (stream == block->streams.size()) return poison(block);
  DeviceStream* const queue = block->streams[stream];
  queue->run_beside_capture([this, block = std::move(block), stream] {
    // Poison inside this last work, because the stream does not count as idle until it has ended.
    if (stream + 1 == block->streams.size()) return poison(block);
    free_behind(block, stream + 1);
  });
}

void DeviceMemory::poison(const std::shared_ptr<Block>& block) {
  // Adopted memory may still have another user, such as an operator's copy.
  const bool is_shared = block->adopted && block->adopted.use_count() > 1;
  if (!is_shared) std::memset(block->data, kPoison, block->bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  freed_.push_back(block);
  freed_bytes_ += block->bytes;
  while (freed_bytes_ > kMaxQuarantineBytes) {
    const std::shared_ptr<Block> oldest = std::move(freed_.front());
    freed_.pop_front();
    freed_bytes_ -= oldest->bytes;
    if (!oldest->adopted) std::free(oldest->data);
  }
}

void DeviceMemory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (data.get() == nullptr) return;
  DeviceStream* const queue = &Machine::get().queue(stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(data.get_context());
  if (found == blocks_.end()) return;  // not allocated here; CUDA's allocator ignores it too
  auto& streams = found->second->streams;
  for (const DeviceStream* known : streams) {
    if (known == queue) return;
  }
  streams.insert(streams.begin(), queue);
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_.at(static_cast<size_t>(device));
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  change_all(stats_.at(static_cast<size_t>(device)), [](auto& stat) { stat.reset_accumulated(); });
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  change_all(stats_.at(static_cast<size_t>(device)), [](auto& stat) { stat.reset_peak(); });
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto used = stats_.at(static_cast<size_t>(device)).allocated_bytes[0].current;
  return {capacity_bytes() - static_cast<size_t>(used), capacity_bytes()};
}

std::optional<int> DeviceMemory::device_of(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto after = blocks_.upper_bound(data);
  if (after == blocks_.begin()) return std::nullopt;
  const Block& block = *std::prev(after)->second;
  const auto* begin = static_cast<const std::byte*>(block.data);
  if (static_cast<const std::byte*>(data) >= begin + block.bytes) return std::nullopt;
  return block.device;
}

PinnedMemory& PinnedMemory::get() {
  static auto* const memory = new PinnedMemory();
  return *memory;
}

c10::DataPtr PinnedMemory::allocate(size_t bytes) {
  void* data = allocate_on_host(bytes == 0 ? 1 : bytes);
  add(data, bytes == 0 ? 1 : bytes);
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

void PinnedMemory::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

void PinnedMemory::release(void* data) {
  get().remove(data);
  std::free(data);
}

void PinnedMemory::add(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_[data] = bytes;
}

bool PinnedMemory::remove(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.erase(data) != 0;
}

bool PinnedMemory::contains(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto after = ranges_.upper_bound(data);
  if (after == ranges_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const std::byte*>(data) < static_cast<const std::byte*>(begin) + bytes;
}

}  // namespace tessera::internal::testing
