#pragma once

#include <optional>
#include <string>

namespace tessera::internal {

/// Local. The number of tasks of the node with this index in a list of SLURM: 3 for "4(x2),3" and
/// 2. Nothing if the list is malformed or shorter.
std::optional<int> tasks_of_node(const std::string& list, int node);

/// Local. The first host of a list of SLURM: "node03" for "node[03-07,09],login". "" for a
/// malformed one.
std::string first_host(const std::string& list);

}  // namespace tessera::internal
