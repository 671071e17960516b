#pragma once

#include <cstddef>
#include <vector>

namespace tessera::internal::hosts {

/// Which ranks of a group are on which host: a plain value, equal on all of them.
class HostLayout {
 public:
  /// `host_of_rank[r]` says which host rank r is on, by any numbers. Here hosts are numbered in the
  /// order of their first ranks, and the ranks of a host, which need not be neighbours, in theirs.
  explicit HostLayout(const std::vector<int>& host_of_rank);

  int ranks() const { return static_cast<int>(places_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return place(rank).host; }
  /// The number of a rank among the ranks of its host.
  int local_of(int rank) const { return place(rank).local; }
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int rank_of(int host, int local) const { return ranks_of(host)[static_cast<size_t>(local)]; }
  /// The ranks with this local number, by host. All hosts have it.
  std::vector<int> column(int local) const;

  /// Whether all hosts have equally many ranks.
  bool is_even() const;
  /// Of an even layout.
  int ranks_per_host() const { return static_cast<int>(ranks_[0].size()); }
  /// Whether the ranks of every host are neighbours.
  bool is_contiguous() const;
  /// Whether two levels are possible, and a gain: several hosts with equally many ranks, and
  /// several, numbered host by host.
  bool is_two_level() const {
    return hosts() > 1 && is_even() && ranks_per_host() > 1 && is_contiguous();
  }
  /// Whether sums inside each host and then over hosts, each as a binary tree, are the one tree
  /// over all ranks. Of two levels.
  bool sums_are_one_tree() const;

  /// The layout of these ranks, strictly ascending, alone; rank i of it is ranks[i].
  HostLayout of(const std::vector<int>& ranks) const;

 private:
  struct Place {
    int host;
    int local;
  };

  const Place& place(int rank) const { return places_[static_cast<size_t>(rank)]; }

  std::vector<Place> places_;            // by rank
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace tessera::internal::hosts
