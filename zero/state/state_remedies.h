#pragma once

#include <string>

#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Returns `problems` (lines "'<entry>': ..." about a state that does not fit `table`), preceded by
/// advice where the reason is clear: moments in 8 bits on one side only, an average on one side
/// only, missing entries of parameters. "" stays "".
std::string with_remedies(const StateTable& table, const std::string& problems);

}  // namespace tessera::internal
