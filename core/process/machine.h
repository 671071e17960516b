#pragma once

#include <string>

namespace tessera::internal {

/// Local. The boot and the PID namespace that this process lives in: equal where processes can
/// watch each other and share memory.
std::string machine_id();

/// Local. What this machine is called, for messages.
std::string machine_name();

}  // namespace tessera::internal
