#include "tessera/core/comm/group/missing_ranks.h"

#include <absl/algorithm/container.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

/// Returns "1 collective", "2 collectives" and so on.
std::string collectives_text(int64_t count) {
  return absl::StrCat(count, count == 1 ? " collective" : " collectives");
}

}  // namespace

std::vector<int> awaited(const Link& link, Call& call) {
  if (call.is_compared()) return call.transfer()->awaited();
  std::vector<int> ranks;
  for (int rank = 0; rank < link.size(); ++rank) {
    if (link.called_by(rank) <= call.sequence()) ranks.push_back(rank);
  }
  return ranks;
}

bool has_gone(const Link& link, int rank, const Call& call) {
  return link.has_left(rank) && link.finished_by(rank) <= call.sequence();
}

void fail_if_gone(const Link& link, const std::vector<AwaitedRank>& ranks) {
  for (const auto& [rank, has_gone] : ranks) {
    if (!has_gone) continue;
    const std::string finished = collectives_text(link.finished_by(rank));
    throw Fault{absl::StrCat(link.name_of(rank), " left the group after ", finished), rank};
  }
}

bool is_first_of_waiting(const Link& link, const std::vector<int>& missing) {
  int first = 0;
  while (first < link.size() && absl::c_linear_search(missing, first)) ++first;
  return first == link.rank();
}

int culprit_among(const Link& link, const std::vector<int>& missing) {
  const auto stopped = absl::c_find_if(
      missing, [&](int rank) { return absl::StartsWith(link.activity_of(rank), "is stopped"); });
  return stopped == missing.end() ? missing.front() : *stopped;
}

std::string call_elsewhere(const Link& link, int rank, const std::string& group) {
  for (const FlightRecord& record : link.flight_of(rank).records) {
    if (record.end_ns == 0 && !record.is_of(group)) return record.text();
  }
  return "";
}

std::string names_of(const Link& link, const std::vector<int>& missing, const std::string& group) {
  std::string names;
  for (const int rank : missing) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", link.name_of(rank), link.place_of(rank),
                    ", which has finished ", collectives_text(link.finished_by(rank)));
    const std::string activity = link.activity_of(rank);
    if (!activity.empty()) absl::StrAppend(&names, " and ", activity);
    const std::string elsewhere = call_elsewhere(link, rank, group);
    if (!elsewhere.empty()) absl::StrAppend(&names, ", in ", elsewhere);
  }
  return names;
}

}  // namespace tessera::internal
