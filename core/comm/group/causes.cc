#include "tessera/core/comm/group/causes.h"

#include <algorithm>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_mismatch.h"

namespace tessera::internal {
namespace {

std::string slice_problem(const Link& link, int64_t sequence) {
  for (int rank = 1; rank < link.size(); ++rank) {
    const CallRecord* const call = link.record_of(rank, sequence);
    for (int other = 0; call != nullptr && other < rank; ++other) {
      const CallRecord* const earlier = link.record_of(other, sequence);
      if (earlier == nullptr || earlier->slice != call->slice) continue;
      return slice_mismatch(link.name_of(rank), link.name_of(other), call->slice, call->text());
    }
  }
  return "";
}

/// Where links do not tell: the last call of the group that the rank is known to have finished, as
/// this rank has it in its own recorder.
void note_last_call(const Link& link, int rank, const std::string& group, RankFlight& flight) {
  for (const FlightRecord& own : link.flights()->last()) {
    if (own.sequence == link.finished_by(rank) - 1 && own.is_of(group)) flight.records = {own};
  }
}

}  // namespace

std::string difference(const Link& link, int64_t sequence) {
  int first = -1;
  const CallRecord* call = nullptr;
  for (int rank = 0; rank < link.size(); ++rank) {
    const CallRecord* const other = link.record_of(rank, sequence);
    if (other == nullptr) continue;
    if (call == nullptr) {
      first = rank;
      call = other;
    }
    if (call->is_same_call(*other)) continue;
    return absl::StrCat(link.name_of(rank), " called ", other->text(), " where ",
                        link.name_of(first), " called ", call->text());
  }
  const bool has_slices = call != nullptr && call->signature.op == Op::kReduceScatter;
  return has_slices ? slice_problem(link, sequence) : "";
}

std::vector<int> awaited(const Link& link, const Call& call) {
  if (call.is_compared()) return call.transfer()->awaited();
  std::vector<int> ranks;
  for (int rank = 0; rank < link.size(); ++rank) {
    if (link.called_by(rank) <= call.sequence()) ranks.push_back(rank);
  }
  return ranks;
}

int culprit_among(const Link& link, const std::vector<int>& missing) {
  const auto stopped = std::find_if(missing.begin(), missing.end(), [&](int rank) {
    return absl::StartsWith(link.activity_of(rank), "is stopped");
  });
  return stopped == missing.end() ? missing.front() : *stopped;
}

std::string call_elsewhere(const Link& link, int rank, const std::string& group) {
  for (const FlightRecord& record : link.flight_of(rank).records) {
    if (record.end_ns == 0 && !record.is_of(group)) return record.text();
  }
  return "";
}

bool is_in_other_call(const Link& link, int rank, const Call& call) {
  const std::vector<FlightRecord> records = link.flight_of(rank).records;
  return std::any_of(records.begin(), records.end(), [&](const FlightRecord& record) {
    const bool is_this = record.sequence == call.sequence() && record.is_of(*call.group());
    return record.end_ns == 0 && !is_this;
  });
}

std::string collectives_text(int64_t count) {
  return absl::StrCat(count, count == 1 ? " collective" : " collectives");
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

std::string long_wait(const Link& link, Call& call, const std::vector<int>& missing,
                      Call::Clock::time_point now) {
  std::vector<RankFlight> flights;
  for (const int rank : missing) {
    flights.push_back(link.flight_of(rank));
    if (flights.back().records.empty()) note_last_call(link, rank, *call.group(), flights.back());
  }
  return wait_report(call.text(), link.name_of(link.rank()),
                     std::chrono::duration_cast<std::chrono::milliseconds>(call.waited(now)),
                     flights);
}

}  // namespace tessera::internal
