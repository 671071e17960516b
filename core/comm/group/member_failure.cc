// The part of Member that finds, reports and applies failures.
#include "tessera/core/comm/group/member.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/progress_report.h"

namespace tessera::internal {
namespace {

// How much longer the other ranks wait than the first waiting rank, so that all ranks throw the
// first rank's cause.
constexpr auto kForFirst = std::chrono::milliseconds(500);

/// "1 collective", "2 collectives".
std::string collectives_text(int64_t count) {
  return absl::StrCat(count, count == 1 ? " collective" : " collectives");
}

/// Returns the ranks that `call`, which has been announced, waits for.
std::vector<int> awaited(const Link& link, Call& call) {
  if (call.is_compared()) return call.transfer()->awaited();
  std::vector<int> ranks;
  for (int rank = 0; rank < link.size(); ++rank) {
    if (link.called_by(rank) <= call.sequence()) ranks.push_back(rank);
  }
  return ranks;
}

/// Returns true if the rank has left without doing its part in the call. A call that the rank has
/// finished does not count, because its data may still be on its way.
bool has_gone(const Link& link, int rank, const Call& call) {
  return link.has_left(rank) && link.finished_by(rank) <= call.sequence();
}

void fail_as_left(const Link& link, const std::vector<Member::Awaited>& ranks) {
  for (const auto& [rank, has_gone] : ranks) {
    if (!has_gone) continue;
    const std::string finished = collectives_text(link.finished_by(rank));
    throw Fault{absl::StrCat(link.name_of(rank), " left the group after ", finished), rank};
  }
}

/// Returns true if this rank is the first that is not missing. That rank reports for all.
bool is_first_of_waiting(const Link& link, const std::vector<int>& missing) {
  int first = 0;
  while (first < link.size() && absl::c_linear_search(missing, first)) ++first;
  return first == link.rank();
}

/// Returns the missing rank to name to the launcher: one that is stopped, if there is one, else the
/// first.
int culprit_among(const Link& link, const std::vector<int>& missing) {
  const auto stopped = absl::c_find_if(
      missing, [&](int rank) { return absl::StartsWith(link.activity_of(rank), "is stopped"); });
  return stopped == missing.end() ? missing.front() : *stopped;
}

/// Returns the first call under way that the rank has made in a group other than `group`; "" if
/// none is known.
std::string call_elsewhere(const Link& link, int rank, const std::string& group) {
  for (const FlightRecord& record : link.flight_of(rank).records) {
    if (record.end_ns == 0 && !record.is_of(group)) return record.text();
  }
  return "";
}

/// "rank 1 (pid 7), which has finished 3 collectives and is stopped (SIGSTOP), rank 2 ...".
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

}  // namespace

/// Called by a rank that has waited for a while. Takes the lock.
void Member::look_for_trouble(Call::Clock::time_point now, const Patience& patience) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread looks or advances
  guard([&] {
    link_->look_for_dead([this](const std::string& cause) {
      return calls_.empty() ? cause : std::string(calls_.front()->error(cause).what());
    });
    if (link_->has_failed()) return apply_failure(now);
    if (is_part()) {
      note_awaited();
    } else {
      look_for_late(now, patience);
      if (link_->has_thread()) note_awaited_for_callers(now);
    }
    mailbox_.look_for_late(now, patience);
  });
}

void Member::look_for_late(Call::Clock::time_point now, const Patience& patience) {
  if (announced_ == 0) return;
  const std::shared_ptr<Call> front = calls_.front();
  Call& call = *front;
  const auto waited = call.waited(now);
  bool has_any_left = false;
  for (int rank = 0; rank < link_->size(); ++rank) has_any_left |= link_->has_left(rank);
  // Most looks end here, without an allocation.
  if (!has_any_left && waited < std::min(patience.timeout, patience.report_after)) return;
  const std::vector<int> missing = awaited(*link_, call);
  if (absl::c_any_of(missing, [&](int rank) { return has_gone(*link_, rank, call); })) {
    advance();  // the rank may have done its part before it left
    if (calls_.empty() || calls_.front() != front || link_->has_failed()) return;
    return fail_as_left(*link_, find_awaited());
  }
  const bool is_first = is_first_of_waiting(*link_, missing);
  if (waited >= patience.timeout) {
    std::vector<int> overdue;
    for (const int rank : missing) {
      const auto longest = patience.timeout + link_->extra_patience(rank, call) +
                           (is_first ? std::chrono::milliseconds() : kForFirst);
      if (waited >= longest) overdue.push_back(rank);
    }
    if (!overdue.empty()) time_out(call, overdue);
  }
  if (call.is_to_be_reported(now, patience.report_after) && is_first) {
    link_->report_wait(call, missing, now, patience.timeout);
  }
}

std::vector<Member::Awaited> Member::find_awaited() const {
  std::vector<Awaited> ranks;
  if (announced_ == 0) return ranks;
  Call& call = *calls_.front();
  for (const int rank : awaited(*link_, call)) {
    ranks.push_back({rank, has_gone(*link_, rank, call)});
  }
  return ranks;
}

/// Notes the awaited ranks for the group that this member is part of; that group looks for late
/// ranks. If this member is closing, throws Fault itself if an awaited rank has left.
void Member::note_awaited() {
  std::vector<Awaited> ranks = find_awaited();
  if (is_closing()) fail_as_left(*link_, ranks);
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// Notes the awaited ranks, because threads that wait may not ask the link themselves.
void Member::note_awaited_for_callers(Call::Clock::time_point now) {
  std::vector<Awaited> ranks;
  if (announced_ > 0 && calls_.front()->waited(now) >= WaitReport::kLong) ranks = find_awaited();
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// Notes in `wait` which call this thread waits for, and for which ranks. If an earlier call must
/// end before `call`, notes the earlier call.
void Member::note_wait(Call& call, WaitReport& wait) noexcept try {
  std::vector<int> numbers;
  const auto note = [&](const Call& one) { wait.note(one.text(), name_, one.sequence(), numbers); };
  if (call.is_message()) {
    const int peer = call.collective().peer;
    if (peer >= 0 && peer < link_->size()) numbers.push_back(link_->number_of(peer));
    return note(call);
  }
  if (link_->has_thread()) {
    for (const Awaited& awaited : awaited_ranks()) {
      numbers.push_back(link_->number_of(awaited.rank));
    }
    return note(call);
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || calls_.empty()) return;
  for (const Awaited& awaited : find_awaited()) numbers.push_back(link_->number_of(awaited.rank));
  note(*calls_.front());
} catch (const std::exception&) {  // out of memory: the wait is not noted
}

std::vector<Member::Awaited> Member::awaited_ranks() {
  if (!link_->has_thread()) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() ? find_awaited() : std::vector<Awaited>();
  }
  const std::lock_guard lock(awaited_mutex_);
  return awaited_;
}

/// Throws the time-out. If a missing rank is in a call of another group, the time-out fails the
/// whole world, because that rank holds up the other group, too, and all ranks should get the same
/// cause.
void Member::time_out(const Call& call, const std::vector<int>& overdue) {
  const int culprit = culprit_among(*link_, overdue);
  const bool is_elsewhere = absl::c_any_of(
      overdue, [this](int rank) { return !call_elsewhere(*link_, rank, name_).empty(); });
  const std::string cause =
      absl::StrCat("timed out: ", link_->own_name(), " waited ", patience_.timeout.count(), " ms ",
                   is_elsewhere ? absl::StrCat("in ", call.text(), " ") : "", "for ",
                   names_of(*link_, overdue, name_));
  throw Fault{cause, culprit, is_elsewhere};
}

/// Fails the calls that can no longer end well. See Note [Failure].
void Member::apply_failure(Call::Clock::time_point now) {
  const Failure failure = link_->failure();
  if (!failed_at_.has_value()) failed_at_ = now;
  mailbox_.end_all(failure.cause);
  if (calls_.empty()) return;
  const int64_t sequence = calls_.front()->sequence();
  const bool has_begun = sequence < failure.calls || failure.author == Failure::kOutsider ||
                         (failure.author >= 0 && sequence < link_->called_by(failure.author));
  if (has_begun && now - *failed_at_ < Link::kGrace) return;
  while (move()) continue;  // calls whose data is here end well, as on other ranks
  if (!calls_.empty()) end_calls(hear_failure());
}

/// Tells the ranks that may not know the failure yet, and returns the cause for this rank to throw.
std::string Member::hear_failure() {
  link_->pass_on_failure();
  return link_->failure().cause;
}

/// Fails the group with a fault that this rank has found. Tells the launcher first, before the
/// other ranks can fail. If another rank is the culprit, also tells the launcher in which call this
/// rank waited for the culprit.
void Member::fail(const Fault& fault) {
  const std::string& cause = fault.cause;
  const int64_t calls = calls_.empty() ? begun_ : calls_.front()->sequence();
  const std::string text = calls_.empty() ? cause : calls_.front()->error(cause).what();
  const bool is_own = fault.culprit < 0 || fault.culprit == link_->rank();
  if (!link_->has_failed()) {
    report_failure(is_own ? -1 : link_->number_of(fault.culprit), is_own ? cause : text);
  }
  if (fault.is_of_world) link_->fail_world(cause);
  if (link_->fail({cause, calls})) link_->dump_flights(text);
  const std::string first = link_->failure().cause;
  failed_at_ = Call::Clock::now();
  mailbox_.end_all(first);
  end_calls(first);
}

void Member::end_calls(const std::string& cause) {
  for (const auto& call : std::exchange(calls_, {})) link_->give_up(*call, cause);
  announced_ = 0;
}

}  // namespace tessera::internal
