#include "tessera/tests/support/rank_hosts.h"

#include <utility>

#include "tessera/core/comm/hosts/world_group.h"

namespace tessera::internal::testing {
namespace {

RankBody on_hosts(const std::vector<int>& host_of_rank, const RankBody& body) {
  return [&](std::shared_ptr<ProcessGroup> world) {
    body(as_on_hosts(std::move(world), host_of_rank));
  };
}

}  // namespace

std::shared_ptr<ProcessGroup> as_on_hosts(const std::shared_ptr<ProcessGroup>& world,
                                          const std::vector<int>& host_of_rank) {
  const auto inside = std::dynamic_pointer_cast<Group>(split(*world, host_of_rank, "host"));
  const auto layout = hosts::HostLayout::of(host_of_rank);
  if (!layout.has_value() || !layout->is_two_level()) return world;  // as in a job
  return hosts::make_group(std::dynamic_pointer_cast<Group>(world), inside, *layout);
}

void run_host_ranks(const std::vector<int>& host_of_rank, const RankBody& body,
                    const RankThreadOptions& options) {
  run_ranks(static_cast<int>(host_of_rank.size()), on_hosts(host_of_rank, body), options);
}

std::vector<std::string> run_host_ranks_expecting_errors(const std::vector<int>& host_of_rank,
                                                         const RankBody& body,
                                                         const RankThreadOptions& options) {
  return run_ranks_expecting_errors(static_cast<int>(host_of_rank.size()),
                                    on_hosts(host_of_rank, body), options);
}

std::vector<int> hosts_in_order(int hosts, int locals) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < hosts * locals; ++rank) host_of_rank.push_back(rank / locals);
  return host_of_rank;
}

}  // namespace tessera::internal::testing
