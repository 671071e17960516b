#pragma once

#include <memory>

#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Local. The Work of a collective whose result comes on the calling thread's current stream of
/// `device`, behind what that holds now. Its wait() makes the stream that is current then wait,
/// which costs nothing where it is the same one; the host never waits.
std::shared_ptr<Work> queued_work(std::shared_ptr<Device> device);

}  // namespace tessera::internal
