#pragma once

#include <optional>

#include "tessera/environment.h"

namespace tessera::internal {

/// Local. The variables that a process of this host was started with; nothing if it does not show
/// them (another user's, setuid, gone, /proc hidden).
std::optional<EnvironmentLookup> variables_of_process(int pid);

}  // namespace tessera::internal
