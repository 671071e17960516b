#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the cores, ascending, on which at least one of the processes `pids` of this host
/// may run. Pid 0 stands for the calling thread. Empty if the kernel does not report the cores.
std::vector<int> cores_of(const std::vector<int>& pids = {0});

/// Local. Returns the CPU quota, in cores, that the control groups of this process (a container)
/// set; nullopt without a quota. Rounded down, but at least 1. (If more threads spin than the quota
/// allows, they use it up early, and the kernel stops all of them for the rest of each 100 ms
/// period.) `root` is prepended to the paths in /proc and /sys; tests put a made-up tree there.
std::optional<int> core_quota(const std::string& root = "");

/// Local. Returns how many cores the processes `pids` of this host may use together, at least 1: as
/// many as cores_of(pids) lists, or the quota of this process if that is less. All of the processes
/// must have the same quota as this one.
int available_cores(const std::vector<int>& pids = {0});

}  // namespace tessera::internal
