#include "tessera/zero/placement.h"

#include <c10/util/Exception.h>

namespace tessera {

Degrees placement(Strategy strategy, int world_size) {
  switch (strategy) {
    case Strategy::kDdp:
      return {.parameters = 1, .gradients = 1, .optimizer = 1};
    case Strategy::kZero1:
      return {.parameters = 1, .gradients = 1, .optimizer = world_size};
    case Strategy::kZero2:
      return {.parameters = 1, .gradients = world_size, .optimizer = world_size};
    case Strategy::kZero3:
      TORCH_CHECK(
          false,
          "[zero] strategy: got zero3 (fsdp), which is not available yet; use ddp, zero1 or zero2");
  }
  TORCH_INTERNAL_ASSERT(false, "strategy ", static_cast<int>(strategy));
}

}  // namespace tessera
