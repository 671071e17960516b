#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Copies parameters from the host to the device on a stream of its own. In a step it copies new
/// values while the CPU computes the next ones. Under Offload::kParameters it also copies shards
/// into the memory in which their unit is gathered. Note [Offload] in
/// zero/step/offloaded_gradients.cc. Used by one thread at a time.
class ShardUploads {
 public:
  /// `rounded_bytes`: the size of the largest `to` that start() will get with a `from` of another
  /// dtype; 0 if dtypes always agree. Two buffers of that size are kept, and `meter`, which must
  /// outlive this object, counts them. Local (allocates).
  ShardUploads(std::shared_ptr<Device> device, int64_t rounded_bytes, MemoryMeter& meter);
  ~ShardUploads();
  ShardUploads(const ShardUploads&) = delete;
  ShardUploads& operator=(const ShardUploads&) = delete;

  /// Queues a copy of `from` to `to`, which runs after the work that the current stream has now.
  /// `to` lies on the device, `from` in pinned host memory, both [n]. If the dtypes differ, the
  /// call rounds `from` into one of two buffers, and first blocks until that buffer's last copy has
  /// run. If they agree, `from` must not change until await() has returned.
  void start(const at::Tensor& to, const at::Tensor& from);

  /// Until the returned scope ends, the stream of the copies is the current stream of the calling
  /// thread. Work queued in between runs after the copies, and the previous current stream does not
  /// wait for it.
  std::shared_ptr<void> use() { return device_->use(*stream_); }

  /// Makes the current stream wait for all copies that start() has queued.
  void join() { device_->current_stream()->wait(*copied_); }

  /// Blocks until all copies have run; then every `from` may be written again.
  void await() { copied_->synchronize(); }

 private:
  struct Buffer {
    // Holds rounded values: bytes in pinned host memory; undefined if rounded_bytes is 0.
    at::Tensor memory;
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
