#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Local. `inner`, and what wait() does when that is over: `then`, once, and waits for what it has
/// begun.
std::shared_ptr<Work> continued(std::shared_ptr<Work> inner,
                                std::function<std::shared_ptr<Work>()> then);

/// Local. Makes `to` equal to `from`, of equal dtype and numel: queued on the calling thread's
/// current stream of `device`, or copied in the call where that is null. Does nothing in place.
void queue_copy(Device* device, const at::Tensor& to, const at::Tensor& from);

/// Local. The Work of a collective whose result is produced by what is queued so far on the calling
/// thread's current stream of `device`. Its wait() makes the stream that is current then wait for
/// that, at no cost if it is the same stream; the host never waits. Of no device: completed_work().
std::shared_ptr<Work> queued_work(const std::shared_ptr<Device>& device);

}  // namespace tessera::internal
