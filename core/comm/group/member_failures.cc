// How a group fails, by what, and who is told.
#include <algorithm>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/group/causes.h"
#include "tessera/core/comm/group/member.h"
#include "tessera/core/comm/group/yielding_lock.h"
#include "tessera/core/process/failure_report.h"

namespace tessera::internal {
namespace {

// How much longer the others wait than the first of those that wait, so that all hear its cause.
constexpr auto kForFirst = std::chrono::milliseconds(500);

/// The cause of a call that waits for a rank that has left.
std::string departure_cause(const Link& link, int rank) {
  return absl::StrCat(link.name_of(rank), " left the group after ",
                      collectives_text(link.finished_by(rank)));
}

}  // namespace

/// Of a rank that waits in vain for a while. Takes the lock.
void Member::look_for_trouble(Call::Clock::time_point now) {
  const YieldingLock lock(locked_, std::try_to_lock);
  if (!lock.owned()) return;  // another thread is at it
  guard([&] {
    link_->look_for_dead([this](const std::string& cause) {
      return calls_.empty() ? cause : std::string(calls_.front()->error(cause).what());
    });
    if (link_->has_failed()) return apply_failure(now);
    if (part_.has_value()) {
      note_awaited();
    } else {
      look_for_late(now);
    }
    mailbox_.look_for_late(now, patience_.timeout, patience_.report_after);
  });
}

/// What it has finished may still be on its way.
bool Member::has_gone(int rank, const Call& call) const {
  return link_->has_left(rank) && link_->finished_by(rank) <= call.sequence();
}

void Member::look_for_late(Call::Clock::time_point now) {
  if (announced_ == 0) return;
  const std::shared_ptr<Call> front = calls_.front();
  Call& call = *front;
  const bool is_late = call.waited(now) >= patience_.timeout;
  const bool is_to_be_reported = call.is_to_be_reported(now, patience_.report_after);
  bool has_any_left = false;
  for (int rank = 0; rank < link_->size(); ++rank) has_any_left |= link_->has_left(rank);
  if (!is_late && !is_to_be_reported && !has_any_left) return;
  const std::vector<int> missing = awaited(*link_, call);
  if (std::any_of(missing.begin(), missing.end(), [&](int rank) { return has_gone(rank, call); })) {
    advance();  // it may have done its part before it left
    if (calls_.empty() || calls_.front() != front || link_->has_failed()) return;
    for (const int rank : awaited(*link_, call)) {
      if (!has_gone(rank, call)) continue;
      throw Fault{departure_cause(*link_, rank), rank};
    }
    return;
  }
  if (is_late) {
    const auto waited = call.waited(now);
    const auto more = is_first_of_waiting(missing) ? std::chrono::milliseconds() : kForFirst;
    std::vector<int> overdue;
    for (const int rank : missing) {
      if (waited >= patience_.timeout + link_->extra_patience(rank, call) + more) {
        overdue.push_back(rank);
      }
    }
    if (!overdue.empty()) time_out(call, overdue);
  }
  if (is_to_be_reported) report_wait(call, missing, now);
}

std::vector<Member::Awaited> Member::find_awaited() const {
  std::vector<Awaited> ranks;
  if (announced_ == 0) return ranks;
  const Call& call = *calls_.front();
  for (const int rank : awaited(*link_, call)) ranks.push_back({rank, has_gone(rank, call)});
  return ranks;
}

/// The group that this is part of judges what is noted here, unless it has gone.
void Member::note_awaited() {
  std::vector<Awaited> ranks = find_awaited();
  for (const Awaited& one : ranks) {
    if (!is_closing_ || !one.has_gone) continue;
    throw Fault{departure_cause(*link_, one.rank), one.rank};
  }
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

std::vector<Member::Awaited> Member::awaited_ranks() {
  if (!link_->has_thread()) {
    const YieldingLock lock(locked_, std::try_to_lock);
    return lock.owned() ? find_awaited() : std::vector<Awaited>();
  }
  const std::lock_guard lock(awaited_mutex_);
  return awaited_;
}

/// Of several ranks that wait for the same ones, one speaks for all.
bool Member::is_first_of_waiting(const std::vector<int>& missing) const {
  int first = 0;
  while (first < link_->size() && std::count(missing.begin(), missing.end(), first) > 0) ++first;
  return first == link_->rank();
}

/// Says once, for all ranks that wait, who has not come and where those were last seen.
void Member::report_wait(Call& call, const std::vector<int>& missing,
                         Call::Clock::time_point now) const {
  if (!is_first_of_waiting(missing)) return;
  TORCH_WARN("[comm] ", long_wait(*link_, call, missing, now),
             ". Ranks go on waiting until the time-out of ", patience_.timeout.count(), " ms");
}

/// Who is in a call of another group holds up the ranks there, too, so all ranks of the world get
/// the same cause.
void Member::time_out(const Call& call, const std::vector<int>& overdue) {
  const int culprit = culprit_among(*link_, overdue);
  const std::string waited =
      absl::StrCat("timed out: ", own_name(), " waited ", patience_.timeout.count(), " ms ");
  const std::string names = absl::StrCat("for ", names_of(*link_, overdue, *name_));
  const bool is_elsewhere = std::any_of(overdue.begin(), overdue.end(), [this](int rank) {
    return !call_elsewhere(*link_, rank, *name_).empty();
  });
  if (!is_elsewhere) throw Fault{waited + names, culprit};
  const std::string cause = absl::StrCat(waited, "in ", call.text(), " ", names);
  report(call.error(cause).what(), cause, culprit);
  link_->fail_world(cause);
  throw Fault{cause, culprit};
}

/// Note [Failure]
void Member::apply_failure(Call::Clock::time_point now) {
  const Failure failure = link_->failure();
  if (!failed_at_.has_value()) failed_at_ = now;
  mailbox_.end_all(failure.cause);
  if (calls_.empty()) return;
  const int64_t sequence = calls_.front()->sequence();
  const bool has_begun = sequence < failure.calls || failure.author == Failure::kOutsider ||
                         (failure.author >= 0 && sequence < link_->called_by(failure.author));
  if (has_begun && now - *failed_at_ < Link::kGrace) return;
  end_calls(hear_failure());
}

/// The cause, which this rank is going to throw.
std::string Member::hear_failure() {
  link_->pass_on_failure();
  return link_->failure().cause;
}

/// Tells the launcher, before the others learn of it: of another rank, in which call this one
/// missed it.
void Member::report(const std::string& text, const std::string& cause, int culprit) const {
  if (link_->has_failed()) return;
  if (culprit < 0 || culprit == link_->rank()) return report_failure(-1, cause);
  report_failure(link_->number_of(culprit), text);
}

/// This rank has found it.
void Member::fail(const Fault& fault) {
  const std::string& cause = fault.cause;
  const int64_t calls = calls_.empty() ? begun_ : calls_.front()->sequence();
  const std::string text = calls_.empty() ? cause : calls_.front()->error(cause).what();
  report(text, cause, fault.culprit);
  if (link_->fail({cause, calls})) link_->dump_flights(text);
  const std::string first = link_->failure().cause;
  failed_at_ = Call::Clock::now();
  mailbox_.end_all(first);
  end_calls(first);
}

void Member::end_calls(const std::string& cause) {
  for (const auto& call : std::exchange(calls_, {})) {
    const Collective collective = call->collective();
    if (call->transfer() != nullptr) link_->abandon(call->take_transfer(), collective);
    call->fail(cause);
  }
  announced_ = 0;
}

}  // namespace tessera::internal
