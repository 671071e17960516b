#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"

namespace tessera::internal::cuda {

/// Host memory for repeated small copies to the device. A buffer is reused only after its last
/// copies have run; if none is free, another one is allocated, so that no call waits. Used by one
/// thread at a time.
class Uploads {
 public:
  /// Each buffer has `words` int64, and is allocated when it is first needed.
  Uploads(std::shared_ptr<Device> device, int64_t words);

  /// Returns a buffer to write to, [words] int64 in memory from Device::allocate_on_host. Local,
  /// does not block.
  const at::Tensor& take();
  /// To be called when the copies from the buffer of the last take() have been queued on `stream`:
  /// the buffer is used again only after they have run.
  void queued(Stream& stream);

  /// Returns the number of buffers made so far, the most that were in flight at the same time.
  size_t buffers() const { return buffers_.size(); }

 private:
  struct Buffer {
    at::Tensor memory;
    std::shared_ptr<Event> copied;
  };

  const std::shared_ptr<Device> device_;
  const int64_t words_;
  std::vector<Buffer> buffers_;
  size_t taken_ = 0;
};

}  // namespace tessera::internal::cuda
