#pragma once

#include <cstdint>
#include <string>

namespace tessera::internal {

/// Local. Returns how many more bytes of memory this process can get: the host's free memory, swap
/// included, or the least that is left below a limit of its control groups (a container's). The
/// page cache counts as free, because the kernel gives it up on demand. `root`: see
/// control_group_folders().
int64_t available_memory_bytes(const std::string& root = "");

}  // namespace tessera::internal
