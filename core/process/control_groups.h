#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. The folders, in their usual places, of the control groups that limit this process by
/// `controller` ("memory", "cpu"): its own ones and all parents, of version 2 and 1. Any folder or
/// file in it may be missing, and is no limit then. `root` precedes all paths; tests have a made-up
/// tree there.
std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root = "");

}  // namespace tessera::internal
