#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "tessera/tests/support/fake_cuda/machine.h"

namespace tessera::internal::testing {

/// The memory of all fake GPUs, as the caching allocator gives it out: in units of 512 bytes, for
/// reuse in the order of the stream that was current at the allocation. New memory is filled with
/// 0xFF (NaN; -1). So is freed memory, once that stream and all streams that it was recorded on
/// have run the work that was queued when it was freed. A dangling pointer then reads this, not the
/// next owner's data.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static DeviceMemory& get();

  /// Allocates on the calling thread's device.
  c10::DataPtr allocate(size_t bytes) override;
  /// Registers CPU memory as memory of `device`; `storage` keeps owning it.
  c10::DataPtr adopt(const c10::Storage& storage, int device);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override;

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  /// The device whose memory contains this address.
  std::optional<int> device_of(const void* data);

 private:
  struct Block {
    void* data;
    size_t bytes;          // as asked for
    size_t rounded_bytes;  // as counted
    int device;
    // Streams that use it; the allocation's stream is the last one.
    std::vector<DeviceStream*> streams;
    c10::Storage adopted;
    std::weak_ptr<Capture> capture;  // during which it was allocated
  };

  static void release(void* data);
  void add(Block block);
  void free_behind(std::shared_ptr<Block> block, size_t stream);
  void poison(const std::shared_ptr<Block>& block);

  std::mutex mutex_;
  std::map<const void*, std::shared_ptr<Block>> blocks_;
  std::deque<std::shared_ptr<Block>> freed_;
  size_t freed_bytes_ = 0;
  std::array<c10::CachingDeviceAllocator::DeviceStats, Machine::kMaxDevices> stats_;
};

/// Pinned host memory, for copies that run asynchronously to the host.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& get();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override;

  /// Registers memory that was allocated elsewhere.
  void add(const void* data, size_t bytes);
  /// Returns true if it was registered.
  bool remove(const void* data);
  bool contains(const void* data);

 private:
  static void release(void* data);

  std::mutex mutex_;
  std::map<const void*, size_t> ranges_;  // to their bytes
};

}  // namespace tessera::internal::testing
