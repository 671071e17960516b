#include <chrono>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/mpi/member.h"

namespace tessera::internal::mpi {

/// The first two calls that differ, of those that are there. "" if none do. Equal on all ranks when
/// all are.
std::string Member::difference(const Round& round) const {
  int first = -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (!round.has(rank)) continue;
    if (first < 0) first = rank;
    const Envelope& one = round.of(first);
    const Envelope& other = round.of(rank);
    if (one.is_same_call(other)) continue;
    return absl::StrCat(name_of(rank), " called ", describe(other.signature, other.tag()),
                        " where ", name_of(first), " called ", describe(one.signature, one.tag()));
  }
  return "";
}

std::string Member::slice_problem(const Round& round) const {
  for (int rank = 1; rank < size(); ++rank) {
    for (int other = 0; other < rank; ++other) {
      const Envelope& call = round.of(rank);
      if (call.slice != round.of(other).slice) continue;
      return slice_mismatch(name_of(rank), name_of(other), call.slice,
                            describe(call.signature, call.tag()));
    }
  }
  return "";
}

/// `found`: what differs between the calls that are there, or "".
void Member::time_out(const Call& call, const std::vector<int>& missing, const std::string& found) {
  std::string names;
  for (const int rank : missing) {
    const auto called = called_.find(rank);
    absl::StrAppend(&names, names.empty() ? "" : ", ", name_of(rank), place_of(rank),
                    ", which has called ", called == called_.end() ? 0 : called->second,
                    " collectives");
  }
  if (names.empty()) names = "nobody";
  std::string cause = absl::StrCat("timed out: ", name_of(rank_), " waited ",
                                   call.timeout().count(), " ms for ", names);
  if (!found.empty()) cause = absl::StrCat(found, "; ", cause);
  fail(cause, missing.empty() ? -1 : missing.front());
}

/// Whether no rank before this one has called: of all that wait, it reports.
bool Member::is_first_of(const Round& round) const {
  for (int rank = 0; rank < rank_; ++rank) {
    if (round.has(rank)) return false;
  }
  return true;
}

/// Of a rank that does not answer: the last of this group's calls that it is known to have made,
/// as this rank has it in its own recorder.
void Member::note_last_call(RankFlight& silent) const {
  const auto called = called_.find(rank_of(silent.rank));
  if (!silent.records.empty() || called == called_.end()) return;
  for (const FlightRecord& own : world_->ring()->last()) {
    if (own.sequence == called->second - 1 && own.is_of(name_)) silent.records = {own};
  }
}

void Member::report_wait(const std::shared_ptr<Call>& call, const std::vector<int>& missing) {
  std::vector<int> asked;
  for (const int rank : missing) {
    if (rank != rank_) asked.push_back(world_rank(rank));
  }
  if (asked.empty()) return;
  const auto say = [call, member = shared_from_this()](std::vector<RankFlight> ranks) {
    if (call->is_completed()) return;
    for (RankFlight& rank : ranks) member->note_last_call(rank);
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(call->waited(Call::Clock::now()));
    TORCH_WARN("[comm] ", wait_report(call->text(), member->name_of(member->rank()), waited, ranks),
               ". Ranks go on waiting until the time-out of ", call->timeout().count(), " ms");
  };
  world_->flights().ask(asked, 1, say);
}

}  // namespace tessera::internal::mpi
