#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {

/// As run_ranks(), with a rank for each element of `host_of_rank`. The body gets a group in which
/// the ranks seem to be on these hosts. Shared memory takes the place of the network between them.
void run_host_ranks(const std::vector<int>& host_of_rank, const RankBody& body,
                    const RankThreadOptions& options = {});

/// As run_host_ranks(); returns each rank's error.
std::vector<std::string> run_host_ranks_expecting_errors(const std::vector<int>& host_of_rank,
                                                         const RankBody& body,
                                                         const RankThreadOptions& options = {});

/// Makes a group in which the ranks of `world` seem to be on these hosts. Collective over `world`.
std::shared_ptr<ProcessGroup> as_on_hosts(const std::shared_ptr<ProcessGroup>& world,
                                          const std::vector<int>& host_of_rank);

/// `hosts` hosts of `locals` ranks each, one host after the other.
std::vector<int> hosts_in_order(int hosts, int locals);

}  // namespace tessera::internal::testing
