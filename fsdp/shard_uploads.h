#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Copies parameters from the host to the device on a stream of its own: new values, while the CPU
/// computes the next ones, or under Offload::kParameters shards to where their unit is gathered.
/// Note [Offload] in zero/step/offloaded_gradients.cc. Used by one thread at a time.
class ShardUploads {
 public:
  /// `rounded_bytes`: the largest `to` of start() whose dtype is not that of `from`; two buffers of
  /// that size are kept, counted by `meter`, which must outlive it. Local (allocates).
  ShardUploads(std::shared_ptr<Device> device, int64_t rounded_bytes, MemoryMeter& meter);
  ~ShardUploads();
  ShardUploads(const ShardUploads&) = delete;
  ShardUploads& operator=(const ShardUploads&) = delete;

  /// Queues `to` = `from`, behind what the current stream holds. `to` lies on the device, `from` in
  /// its memory on the host, both [n]. Where the dtypes differ, `from` is rounded in the call, into
  /// a buffer that is free when the copy before the last one has run (blocks until then); where
  /// they agree, `from` stays as it is until await() has returned.
  void start(const at::Tensor& to, const at::Tensor& from);

  /// Until the returned scope ends, the calling thread's current stream is the copying one: work
  /// queued there follows the copies, and the previously current stream does not wait.
  std::shared_ptr<void> use() { return device_->use(*stream_); }

  /// The current stream waits for all copies.
  void join() { device_->current_stream()->wait(*copied_); }

  /// The host does: `from` may be written again. Blocking.
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
