#pragma once

#include <functional>
#include <memory>

#include "tessera/work.h"

namespace tessera::internal {

/// Local. `inner`, and what wait() does when that is over: `then`, once, and waits for what it has
/// begun.
std::shared_ptr<Work> continued(std::shared_ptr<Work> inner,
                                std::function<std::shared_ptr<Work>()> then);

}  // namespace tessera::internal
