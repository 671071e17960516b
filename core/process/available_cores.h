#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the cores on which any of these processes of this host may run (0: the calling
/// thread), ascending; empty if the kernel does not report them.
std::vector<int> cores_of(const std::vector<int>& pids = {0});

/// Local. Returns the CPU quota, in cores, that the control groups of this process (a container)
/// set; nullopt without a quota. Rounded down, but at least 1: if more threads spin than the quota
/// has cores, it is used up early, and the kernel stops all of them for the rest of each period
/// (100 ms). `root` is prepended to the paths in /proc and /sys; tests put a made-up tree there.
std::optional<int> core_quota(const std::string& root = "");

/// Local. Returns how many cores these processes of this host may use together: the number of
/// cores_of(), or the quota of this process if that is less. All of the processes must be in
/// control groups with that quota. At least 1.
int available_cores(const std::vector<int>& pids = {0});

}  // namespace tessera::internal
