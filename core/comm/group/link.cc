// What a rank says of the others, from what its link knows of them.
#include "tessera/core/comm/group/link.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_record.h"

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

std::string Link::name_of(int rank) const {
  const int number = number_of(rank);
  return absl::StrCat("rank ", number, number == rank ? "" : " of the world");
}

std::string Link::difference(int64_t sequence) const {
  int first = -1;
  const CallRecord* call = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    const CallRecord* const other = record_of(rank, sequence);
    if (other == nullptr) continue;
    if (call == nullptr) {
      first = rank;
      call = other;
    }
    if (call->is_same_call(*other)) continue;
    return absl::StrCat(name_of(rank), " called ", other->text(), " where ", name_of(first),
                        " called ", call->text());
  }
  const bool has_slices = call != nullptr && call->signature.op == Op::kReduceScatter;
  return has_slices ? slice_problem(*this, sequence) : "";
}

bool Link::is_in_other_call(int rank, const Call& call) const {
  const std::vector<FlightRecord> records = flight_of(rank).records;
  return std::any_of(records.begin(), records.end(), [&](const FlightRecord& record) {
    const bool is_this = record.sequence == call.sequence() && record.is_of(*call.group());
    return record.end_ns == 0 && !is_this;
  });
}

void Link::report_wait(Call& call, const std::vector<int>& missing, Call::Clock::time_point now,
                       std::chrono::milliseconds timeout) const {
  std::vector<RankFlight> flights;
  for (const int rank : missing) {
    flights.push_back(flight_of(rank));
    if (flights.back().records.empty()) note_last_call(*this, rank, *call.group(), flights.back());
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(call.waited(now));
  TORCH_WARN("[comm] ", wait_report(call.text(), own_name(), waited, flights),
             ". The wait goes on until the time-out of ", timeout.count(), " ms");
}

}  // namespace tessera::internal
