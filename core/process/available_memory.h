#pragma once

#include <cstdint>
#include <string>

namespace tessera::internal {

/// Local. Returns how many more bytes of memory this process can get: the host's free memory, swap
/// included, or less if the limit of one of the process's control groups (its container, for
/// example) leaves less. The page cache counts as free, because the kernel gives it up on demand.
/// `root`: see control_group_folders().
int64_t available_memory_bytes(const std::string& root = "");

}  // namespace tessera::internal
