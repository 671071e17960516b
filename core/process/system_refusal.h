#pragma once

#include <string>

namespace tessera::internal {

/// Returns what the system said when it refused `call` by errno `error`, and the remedy: "fallocate
/// said: File too large; raise ulimit -f".
std::string system_refusal(const char* call, int error);

}  // namespace tessera::internal
