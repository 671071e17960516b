#include "tessera/core/comm/hosts/host_layout.h"

#include <algorithm>
#include <bit>
#include <map>

#include <c10/util/Exception.h>

namespace tessera::internal::hosts {

HostLayout::HostLayout(const std::vector<int>& host_of_rank) {
  TORCH_CHECK(!host_of_rank.empty(),
              "[hosts] layout: got no ranks, expected one or more; give every rank a host");
  std::map<int, int> numbers;  // of hosts, by the caller's numbers
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto [found, is_new] = numbers.try_emplace(host_of_rank[rank], hosts());
    if (is_new) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(found->second)];
    places_.push_back({found->second, static_cast<int>(ranks.size())});
    ranks.push_back(static_cast<int>(rank));
  }
}

std::vector<int> HostLayout::column(int local) const {
  std::vector<int> ranks;
  for (int host = 0; host < hosts(); ++host) ranks.push_back(rank_of(host, local));
  return ranks;
}

bool HostLayout::is_even() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [this](const auto& ranks) { return ranks.size() == ranks_[0].size(); });
}

bool HostLayout::is_contiguous() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& ranks) {
    return ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  });
}

bool HostLayout::sums_are_one_tree() const {
  const auto is_power = [](int number) {
    return std::has_single_bit(static_cast<unsigned>(number));
  };
  return is_power(hosts()) && is_power(ranks_per_host());
}

HostLayout HostLayout::of(const std::vector<int>& ranks) const {
  std::vector<int> host_of_rank;
  for (const int rank : ranks) host_of_rank.push_back(host_of(rank));
  return HostLayout(host_of_rank);
}

}  // namespace tessera::internal::hosts
