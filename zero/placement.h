#pragma once

#include "tessera/core/strategy.h"

namespace tessera {

/// The table behind the strategies: over how many of `world_size` ranks each one splits parameters,
/// gradients and optimizer state. The only switch on Strategy. Throws c10::Error for a strategy
/// that is not available yet.
Degrees placement(Strategy strategy, int world_size);

}  // namespace tessera
