#pragma once

#include <string>

namespace tessera::internal {

/// Local. The boot and the PID namespace that this process lives in: equal where processes can
/// watch each other and share memory.
std::string machine_id();

/// Local. The host that this process is on, as MPI's ranks tell hosts apart: machine_id(), and its
/// network and UTS namespaces, so that containers and namespaces with a network of their own are
/// hosts.
std::string host_id();

/// Local. What this machine is called, for messages.
std::string machine_name();

}  // namespace tessera::internal
