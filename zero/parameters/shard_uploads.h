#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/memory_meter.h"

namespace tessera::internal {

/// Copies new values of parameters from the host to the device, on a stream of its own, while the
/// CPU computes the next ones. Note [Offload] in offloaded_gradients.cc. Used by one thread.
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

  /// The current stream waits for all copies.
  void join();

  /// The host does: `from` may be written again. Blocking.
  void await();

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
