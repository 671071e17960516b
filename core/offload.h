#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/core/precision.h"

namespace tessera {

/// What lies in the host's memory while a GPU trains.
enum class Offload : uint8_t {
  kNone,
  kOptimizer,   ///< moments and masters
  kParameters,  ///< the same, and this rank's shards of parameters
};

/// "none", "optimizer", "parameters".
std::string_view to_string(Offload offload);

/// Whether the optimizer's values are a copy of their own rather than the parameters' shards: where
/// these have another dtype, or lie on the device while the host updates.
inline bool has_master_copy(const UnitPrecision& precision, Offload offload) {
  return precision.has_masters() || offload == Offload::kOptimizer;
}

}  // namespace tessera
