#pragma once

#include <string>

#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// `problems`, lines "'<entry>': ..." of a state that does not fit the run `table`, with what to do
/// where the reason shows: moments in 8 bits and none, an average and none, entries of parameters
/// that are missing. "" stays "".
std::string with_remedies(const StateTable& table, const std::string& problems);

}  // namespace tessera::internal
