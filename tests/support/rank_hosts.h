#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {

/// As run_ranks(), of a rank for each of `host_of_rank`, as if on these hosts: the body gets the
/// group of several hosts. Between hosts there is shared memory, too, that only looks like a
/// network.
void run_host_ranks(const std::vector<int>& host_of_rank, const RankBody& body,
                    const RankThreadOptions& options = {});

/// The same; returns each rank's error.
std::vector<std::string> run_host_ranks_expecting_errors(const std::vector<int>& host_of_rank,
                                                         const RankBody& body,
                                                         const RankThreadOptions& options = {});

/// Collective over `world`: its ranks as if on these hosts.
std::shared_ptr<ProcessGroup> as_on_hosts(const std::shared_ptr<ProcessGroup>& world,
                                          const std::vector<int>& host_of_rank);

/// `hosts` hosts of `locals` ranks, one host after the other.
std::vector<int> hosts_in_order(int hosts, int locals);

}  // namespace tessera::internal::testing
