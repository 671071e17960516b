#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Copies parameters from the host to the device on a separate stream: new values, while the CPU
/// computes the next ones, or under Offload::kParameters shards to where their unit is gathered.
/// Note [Offload] in zero/step/offloaded_gradients.cc. Used by one thread at a time.
class ShardUploads {
 public:
  /// `rounded_bytes`: the size of the largest `to` in start() whose dtype differs from `from`'s.
  /// Keeps two buffers of that size, counted by `meter`, which must outlive it. Local (allocates).
  ShardUploads(std::shared_ptr<Device> device, int64_t rounded_bytes, MemoryMeter& meter);
  ~ShardUploads();
  ShardUploads(const ShardUploads&) = delete;
  ShardUploads& operator=(const ShardUploads&) = delete;

  /// Queues `to` = `from` after the work on the current stream. `to` lies on the device, `from` in
  /// pinned host memory, both [n]. If the dtypes differ, the call rounds `from` into a buffer, and
  /// first blocks until the copy before the last one has run. If they agree, `from` must not change
  /// until await() has returned.
  void start(const at::Tensor& to, const at::Tensor& from);

  /// Makes the copying stream the calling thread's current one until the returned scope ends: work
  /// queued there follows the copies, and the previous current stream does not wait.
  std::shared_ptr<void> use() { return device_->use(*stream_); }

  /// Makes the current stream wait for all copies.
  void join() { device_->current_stream()->wait(*copied_); }

  /// Waits for all copies; then `from` may be written again. Blocking.
  void await() { copied_->synchronize(); }

 private:
  struct Buffer {
    at::Tensor memory;  // bytes, pinned; undefined if nothing is rounded
    std::shared_ptr<Event> copied;
  };

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Stream> stream_;
  MemoryMeter& meter_;
  const std::shared_ptr<Event> begun_;
  const std::shared_ptr<Event> copied_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace tessera::internal
