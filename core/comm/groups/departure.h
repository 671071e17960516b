#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::internal {

/// The cause of a call that waits for a rank that has left: "rank 1 left the group after 7
/// collectives".
std::string departure_cause(const std::string& name, int64_t collectives);

/// The number of the rank in a cause of departure_cause(), in the world; nothing in any other.
std::optional<int> departed_rank(const std::string& cause);

}  // namespace tessera::internal
