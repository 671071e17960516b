#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::internal {

/// Local. The processes of this host that the launcher of this one has started, with this one, by
/// the rank that `rank_variable` says to them: one of each rank, or more where a shell is between
/// or a rank has started others. Processes that do not show their environment are missing; all are
/// where /proc is hidden. Cost: a look at every process of the host.
std::map<int, std::vector<int>> launched_ranks(const std::string& rank_variable);

}  // namespace tessera::internal
