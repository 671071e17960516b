#pragma once

#include <cstdint>

namespace prove {

/// Returns the number of listening TCP and bound UDP sockets, IPv4 and IPv6, of this process and
/// its parent (the launcher).
int64_t open_ports();

}  // namespace prove
