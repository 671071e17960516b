#include "tessera/core/comm/hosts/host_layout.h"

#include <set>

namespace tessera::internal::hosts {

std::optional<HostLayout> HostLayout::of(const std::vector<int>& host_of_rank) {
  const std::set<int> all(host_of_rank.begin(), host_of_rank.end());
  const auto hosts = static_cast<int>(all.size());
  const auto ranks = static_cast<int>(host_of_rank.size());
  const HostLayout layout{hosts, ranks / hosts};
  if (layout.ranks() != ranks) return std::nullopt;
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = layout.rank_of(layout.host_of(rank), 0);
    if (host_of_rank[static_cast<size_t>(rank)] != host_of_rank[static_cast<size_t>(first)]) {
      return std::nullopt;
    }
  }
  return layout;
}

}  // namespace tessera::internal::hosts
