#pragma once

#include <string>

#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Returns `problems` (lines "'<entry>': ..." about a state that does not fit `table`), preceded by
/// advice where the reason is clear: either the state or this run, but not both, has moments in 8
/// bits or an average of the weights; or entries of parameters are missing. Returns "" if
/// `problems` is "".
std::string with_remedies(const StateTable& table, const std::string& problems);

}  // namespace tessera::internal
