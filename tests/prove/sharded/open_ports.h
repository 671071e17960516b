#pragma once

#include <cstdint>

namespace prove {

/// Sockets at which this process or the one that started it (the launcher) can be reached from
/// other machines: TCP that listens, UDP that is bound; IPv4 and IPv6.
int64_t open_ports();

}  // namespace prove
