#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Local. Returns a Work whose wait() waits for `inner`, then calls `then` once and waits for the
/// Work that it returned.
std::shared_ptr<Work> continued(std::shared_ptr<Work> inner,
                                std::function<std::shared_ptr<Work>()> then);

/// Local. Copies `from` to `to`, of equal dtype and numel: queued on the calling thread's current
/// stream of `device`, or inside the call if `device` is null. Does nothing if they are the same
/// memory.
void queue_copy(Device* device, const at::Tensor& to, const at::Tensor& from);

/// Local. Returns the Work of a collective whose result is produced by what is queued so far on the
/// calling thread's current stream of `device`. Its wait() makes the stream that is current at that
/// time wait for the result, which costs nothing on the same stream. It never blocks the thread.
/// Returns completed_work() if `device` is null.
std::shared_ptr<Work> queued_work(const std::shared_ptr<Device>& device);

}  // namespace tessera::internal
