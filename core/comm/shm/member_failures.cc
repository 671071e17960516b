#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/departure.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {

/// Says once, for all ranks that wait, who has not come and where those were last seen.
void Member::report_wait(const Awaited& awaited, const CallDescriptor& call,
                         std::chrono::steady_clock::duration waited) {
  // Another number for each thing that is waited for; they come in the same order on all ranks.
  const auto subject =
      static_cast<uint32_t>(3 * awaited.number) + static_cast<uint32_t>(awaited.what) + 1;
  uint32_t reported = channel_.reported.load(std::memory_order_relaxed);
  if (reported == subject) return;
  if (!channel_.reported.compare_exchange_strong(reported, subject)) return;
  std::vector<RankFlight> missing;
  for (int rank = 0; rank < channel_.size; ++rank) {
    const ChannelSlot& slot = channel_.slot(rank);
    if (!holds(slot, awaited)) missing.push_back(world_->flight_of(slot.world_rank));
  }
  if (missing.empty()) return;  // they have come by now
  TORCH_WARN("[comm] ",
             wait_report(full_name(call), name_of(rank_),
                         std::chrono::duration_cast<std::chrono::milliseconds>(waited), missing),
             ". Ranks go on waiting until the time-out of ", options_.timeout.count(), " ms");
}

/// Who is missing and not excused: Note [Absent ranks].
std::vector<int> Member::overdue(const Awaited& awaited) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < channel_.size; ++rank) {
    const ChannelSlot& slot = channel_.slot(rank);
    if (holds(slot, awaited) || world_->is_excused(slot.world_rank, options_.timeout)) continue;
    ranks.push_back(rank);
  }
  return ranks;
}

/// The call of another group that `rank` is in, of several the first; "" if it is in none.
std::string Member::call_elsewhere(int rank) const {
  const RankFlight flight = world_->flight_of(channel_.slot(rank).world_rank);
  for (const FlightRecord& record : flight.records) {
    if (record.end_ns == 0 && !record.is_of(group_name_)) return record.text();
  }
  return "";
}

/// `missing`: one rank or more. Who is in a call of another group holds up the ranks there, too, so
/// all ranks of the world get the same cause.
void Member::time_out(const std::vector<int>& missing, const CallDescriptor& call) {
  const int culprit = find_culprit(missing);
  const std::string waited =
      absl::StrCat("timed out: ", name_of(rank_), " waited ", options_.timeout.count(), " ms ");
  const std::string names = absl::StrCat("for ", names_of(missing));
  const bool is_elsewhere = std::any_of(missing.begin(), missing.end(),
                                        [this](int rank) { return !call_elsewhere(rank).empty(); });
  if (!is_elsewhere) fail(call, waited + names, culprit);
  const std::string cause = absl::StrCat(waited, "in ", full_name(call), " ", names);
  report(call, culprit, cause);
  abort(cause);
  throw error(call, world_->poison().cause());
}

void Member::check_leavers(const Awaited& awaited, const CallDescriptor& call) {
  for (int rank = 0; rank < size(); ++rank) {
    ChannelSlot& slot = channel_.slot(rank);
    if (slot.left.load(std::memory_order_seq_cst) == 0 || holds(slot, awaited)) continue;
    throw_if_failed(call);  // it poisons before it leaves, and then that is the cause
    fail(call, departure_cause(name_of(rank), slot.collectives.load(std::memory_order_relaxed)),
         slot.world_rank);
  }
}

void Member::fail(const CallDescriptor& call, const std::string& cause, int culprit) {
  const bool is_first = !channel_.poison.is_set();
  if (is_first) report(call, culprit, cause);
  channel_.poison.set(cause);
  wake();
  if (is_first) world_->dump_flights(error(call, cause).what());
  throw error(call, channel_.poison.cause());
}

std::string Member::full_name(const CallDescriptor& call) const {
  return absl::StrCat(describe(call), " #", call.sequence, " on group '", group_name_, "'");
}

void Member::abort(std::string_view cause) noexcept { world_->fail(cause); }

CommError Member::error(const CallDescriptor& call, const std::string& cause) const {
  return {{to_string(call.signature.op), group_name_, call.sequence, rank_,
           std::string(call.tag.beginning())},
          cause};
}

/// Tells the launcher; of another rank, in which call this one missed it.
void Member::report(const CallDescriptor& call, int culprit, const std::string& cause) const {
  if (culprit < 0) return report_failure(-1, cause);
  report_failure(world_->number_of(culprit), error(call, cause).what(), world_->pid_of(culprit));
}

int Member::find_culprit(const std::vector<int>& missing) const {
  // Who is stopped holds up the others, some of whom may be missing here for that.
  const auto stopped = std::find_if(missing.begin(), missing.end(), [this](int rank) {
    return world_->is_stopped(channel_.slot(rank).world_rank);
  });
  return channel_.slot(stopped == missing.end() ? missing.front() : *stopped).world_rank;
}

std::string Member::names_of(const std::vector<int>& missing) const {
  std::string names;
  for (const int rank : missing) {
    const ChannelSlot& slot = channel_.slot(rank);
    absl::StrAppend(&names, names.empty() ? "" : ", ", name_of(rank),
                    world_->place_of(slot.world_rank), ", which has finished ",
                    slot.collectives.load(std::memory_order_relaxed), " collectives");
    const std::string activity = world_->activity_of(slot.world_rank);
    if (!activity.empty()) absl::StrAppend(&names, " and ", activity);
    const std::string elsewhere = call_elsewhere(rank);
    if (!elsewhere.empty()) absl::StrAppend(&names, ", in ", elsewhere);
  }
  return names;
}

}  // namespace tessera::internal::shm
