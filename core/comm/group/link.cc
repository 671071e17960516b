// Texts about other ranks, made from what this rank's link knows about them.
#include "tessera/core/comm/group/link.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_record.h"

namespace tessera::internal {

std::string Link::name_of(int rank) const {
  const int number = number_of(rank);
  return absl::StrCat("rank ", number, number == rank ? "" : " of the world");
}

void Link::give_up(Call& call, const std::string& cause) {
  const Collective collective = call.collective();  // keeps the tensors until the transfer is gone
  if (call.transfer() != nullptr) abandon(std::move(call.transfer()), collective);
  call.fail(cause);
}

std::string Link::difference(int64_t sequence) const {
  int first = 0;
  const CallRecord* expected = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    const CallRecord* const call = record_of(rank, sequence);
    if (call == nullptr) continue;
    if (expected == nullptr) {
      first = rank;
      expected = call;
    }
    if (!call->is_same_call(*expected)) {
      return absl::StrCat(name_of(rank), " called ", call->text(), " where ", name_of(first),
                          " called ", expected->text());
    }
    for (int other = first; call->signature.op == Op::kReduceScatter && other < rank; ++other) {
      const CallRecord* const earlier = record_of(other, sequence);
      if (earlier == nullptr || earlier->slice != call->slice) continue;
      return slice_mismatch(name_of(rank), name_of(other), call->slice, call->text());
    }
  }
  return "";
}

bool Link::is_in_other_call(int rank, const Call& call) const {
  const std::vector<FlightRecord> records = flight_of(rank).records;
  return std::any_of(records.begin(), records.end(), [&](const FlightRecord& record) {
    const bool is_this = record.sequence == call.sequence() && record.is_of(call.group());
    return record.end_ns == 0 && !is_this;
  });
}

void Link::report_wait(Call& call, const std::vector<int>& missing, Call::Clock::time_point now,
                       std::chrono::milliseconds timeout) const {
  std::vector<RankFlight> flights;
  for (const int rank : missing) {
    RankFlight& flight = flights.emplace_back(flight_of(rank));
    if (!flight.records.empty()) continue;
    // The link does not know the calls of `rank`. But all ranks make the same calls, so the last
    // call of this group that `rank` is known to have finished is also in this rank's own recorder.
    for (const FlightRecord& own : this->flights()->last()) {
      if (own.sequence == finished_by(rank) - 1 && own.is_of(call.group())) flight.records = {own};
    }
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(call.waited(now));
  TORCH_WARN("[comm] ", wait_report(call.text(), own_name(), waited, flights),
             ". The wait goes on until the time-out of ", timeout.count(), " ms");
}

}  // namespace tessera::internal
