#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. The folders in which the kernel shows the limits of this process's control groups that
/// have `controller` ("memory", "cpu"): its own group and all parents, as far as they are mounted
/// here, of version 2 and 1. A folder or a file in it may be missing, and is no limit then. `root`
/// precedes the paths of /proc and of what is mounted; tests have a made-up tree there.
std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root = "");

}  // namespace tessera::internal
