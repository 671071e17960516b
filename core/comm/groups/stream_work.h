#pragma once

#include <memory>

#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Local. The Work of a collective whose result is produced by what is queued so far on the calling
/// thread's current stream of `device`. Its wait() makes the stream that is current then wait for
/// that, at no cost if it is the same stream; the host never waits.
std::shared_ptr<Work> queued_work(std::shared_ptr<Device> device);

}  // namespace tessera::internal
