#pragma once

#include <string>

namespace tessera::internal {

/// Local. The boot and the PID namespace that this process lives in: equal where processes can
/// watch each other and share memory.
std::string machine_id();

/// Local. Identifies the host that this process is on, as MPI's ranks tell hosts apart:
/// machine_id(), with its network and UTS namespaces. So a container with its own network is a
/// host.
std::string host_id();

/// Local. Returns the name of this machine, for messages.
std::string machine_name();

}  // namespace tessera::internal
