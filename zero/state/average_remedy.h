#pragma once

#include <string>

#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// What to do where a state has an average of weights and the run `table` has none, or the other
/// way round, as `problems` of its entries show: a line to append; "" where both agree.
std::string average_remedy(const StateTable& table, const std::string& problems);

}  // namespace tessera::internal
