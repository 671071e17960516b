#pragma once

#include <cstdint>
#include <string>

namespace tessera::internal {

/// Local. Bytes of memory that this process can still get: what the host has, swap included, or the
/// least that is left below a limit of its control groups (a container's), where the cache of files
/// counts as free as the kernel gives it up for the asking. `root`: as of control_group_folders().
int64_t available_memory_bytes(const std::string& root = "");

}  // namespace tessera::internal
