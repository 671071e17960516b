#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns the paths of the control groups that limit this process's use of `controller`
/// ("memory", "cpu"): its own group and all parents of that group, under version 2 and under
/// version 1, in the usual places. A path or file that does not exist sets no limit. `root` is
/// prepended to all paths; tests put a made-up tree there.
std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root = "");

}  // namespace tessera::internal
