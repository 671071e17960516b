#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the cores on which any of these processes of this host may run (0: the calling
/// thread), ascending; none if the kernel does not say it.
std::vector<int> cores_of(const std::vector<int>& pids = {0});

/// Local. Returns how many cores' time the control groups of this process (a container) give it;
/// nullopt without such a limit. Rounded down, but at least 1: if more threads spin than the quota
/// has cores, it is used up early, and the kernel stops all of them for the rest of each period
/// (100 ms). `root` precedes the paths of /proc and /sys; tests have a made-up tree there.
std::optional<int> core_quota(const std::string& root = "");

/// Local. Returns how many cores these processes of this host may use together, all of them limited
/// by the control groups of this one: cores_of(), or the quota if that is less. At least 1.
int available_cores(const std::vector<int>& pids = {0});

}  // namespace tessera::internal
