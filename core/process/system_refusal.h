#pragma once

#include <string>

namespace tessera::internal {

/// What the system said when it refused `call`, one of those that make memory to share, by errno
/// `error`, and the remedy: "memfd_create said: Too many open files; raise ulimit -n".
std::string system_refusal(const char* call, int error);

}  // namespace tessera::internal
