#pragma once

#include <string>

#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// What to do about `problems`, lines "'<entry>': ...", where entries of parameters are missing, in
/// one line; "" if none is.
std::string lack_remedy(const StateTable& table, const std::string& problems);

}  // namespace tessera::internal
