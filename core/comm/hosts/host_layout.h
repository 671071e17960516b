#pragma once

#include <bit>
#include <optional>
#include <vector>

namespace tessera::internal::hosts {

/// How the ranks of a group are placed on hosts: equally many on each, numbered host by host. A
/// plain value, equal on all ranks.
struct HostLayout {
  int hosts = 1;
  int locals = 1;  ///< ranks per host

  /// Returns the layout, or nullopt if the ranks are placed otherwise. `host_of_rank[r]` is any
  /// number that identifies the host of rank r.
  static std::optional<HostLayout> of(const std::vector<int>& host_of_rank);

  int ranks() const { return hosts * locals; }
  int host_of(int rank) const { return rank / locals; }
  /// Returns the number of a rank among the ranks of its host.
  int local_of(int rank) const { return rank % locals; }
  int rank_of(int host, int local) const { return host * locals + local; }
  std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks;
    for (int local = 0; local < locals; ++local) ranks.push_back(rank_of(host, local));
    return ranks;
  }
  /// Returns the ranks with this local number, by host.
  std::vector<int> column(int local) const {
    std::vector<int> ranks;
    for (int host = 0; host < hosts; ++host) ranks.push_back(rank_of(host, local));
    return ranks;
  }

  /// Returns true if collectives gain from two levels, inside the hosts and between them: there are
  /// several hosts with several ranks each.
  bool is_two_level() const { return hosts > 1 && locals > 1; }
  /// Returns true if a binary tree inside each host and then one over the hosts sum in the same
  /// order as one tree over all ranks.
  bool sums_are_one_tree() const {
    return std::has_single_bit(static_cast<unsigned>(hosts)) &&
           std::has_single_bit(static_cast<unsigned>(locals));
  }
};

}  // namespace tessera::internal::hosts
