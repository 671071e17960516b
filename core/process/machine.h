#pragma once

#include <string>

namespace tessera::internal {

/// Local. Returns an id of the boot and the PID namespace of this process. It is equal for
/// processes that can watch each other and share memory.
std::string machine_id();

/// Local. Returns an id of this process's host, in the sense in which MPI ranks distinguish hosts:
/// machine_id() with the network and UTS namespaces. So a container with its own network is a host
/// of its own.
std::string host_id();

/// Local. Returns the name of this machine, for messages.
std::string machine_name();

}  // namespace tessera::internal
