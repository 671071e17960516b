#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the folders, in their usual places, of the control groups that limit this process
/// by `controller` ("memory", "cpu"): its own group and all parents, in versions 2 and 1. A missing
/// folder or file means no limit. `root` is prepended to all paths; tests put a made-up tree there.
std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root = "");

}  // namespace tessera::internal
