#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// What lies in the host's memory while a GPU trains.
enum class Offload : uint8_t {
  kNone,
  kOptimizer,   ///< moments and masters
  kParameters,  ///< the same, and this rank's shards of parameters
};

/// "none", "optimizer", "parameters".
std::string_view to_string(Offload offload);

}  // namespace tessera
