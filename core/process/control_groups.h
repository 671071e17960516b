#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the folders, in their usual places, of the control groups that limit this process
/// by `controller` ("memory", "cpu"): its own and all parents, of versions 2 and 1. Missing folders
/// or files are no limit. `root` precedes all paths; tests have a made-up tree there.
std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root = "");

}  // namespace tessera::internal
