#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Local. Returns a Work. Its wait() waits for `inner`, then calls `then` once, and waits for the
/// Work that `then` returned.
std::shared_ptr<Work> continued(std::shared_ptr<Work> inner,
                                std::function<std::shared_ptr<Work>()> then);

/// Local. Copies `from` to `to`, which must have the same dtype and numel. The copy is queued on
/// the calling thread's current stream of `device`, or made inside the call if `device` is null.
/// Does nothing if they are the same memory.
void queue_copy(Device* device, const at::Tensor& to, const at::Tensor& from);

/// Local. Returns the Work of a collective. The collective's result is ready when all that is
/// queued so far on the calling thread's current stream of `device` has run. wait() never blocks
/// the thread: it makes the stream that is current when wait() is called wait for the result, which
/// costs nothing if this is the same stream. Returns completed_work() if `device` is null.
std::shared_ptr<Work> queued_work(const std::shared_ptr<Device>& device);

}  // namespace tessera::internal
