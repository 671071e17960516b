#pragma once

#include <string>

namespace tessera::internal {

/// Returns the reason why the system refused `call` with errno `error`, and the remedy: "fallocate
/// said: File too large; raise ulimit -f".
std::string system_refusal(const char* call, int error);

}  // namespace tessera::internal
