#include "tessera/core/comm/group/member.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// Beyond the time-out, for the link's thread to notice it; after that the thread is stuck.
constexpr auto kUnawareGrace = std::chrono::seconds(5);
// Of one that looks again and again.
constexpr auto kLooksForTroubleEvery = std::chrono::milliseconds(20);
constexpr const char* kProcessEnds = "this process ends, and with it the thread that communicates";

}  // namespace

/// How a thread waits for the group: it looks for trouble now and then, and says that it waits if
/// that is for the end of `call`.
class Member::Pause {
 public:
  explicit Pause(Member& member, Call* call = nullptr) : member_(member), call_(call) {}
  ~Pause() { member_.link_->end_rest(rest_); }
  Pause(const Pause&) = delete;

  void before_look() { member_.link_->before_look(rest_); }
  void rest() {
    if (call_ != nullptr) wait_.begin();
    if (rest_.is_slow) {
      const auto now = Call::Clock::now();
      if (now >= next_) {
        member_.look_for_trouble(now, member_.patience_);
        next_ = now + kLooksForTroubleEvery;
        if (call_ != nullptr && wait_.is_due(now)) member_.note_wait(*call_, wait_);
      }
    }
    member_.link_->rest(rest_);
  }

 private:
  Member& member_;
  Call* const call_;
  WaitReport wait_;
  Link::Rest rest_;
  Call::Clock::time_point next_;
};

Member::Member(std::unique_ptr<Link> link, std::string name, Lane::Mode mode, Patience patience,
               std::function<void()> after_call)
    : link_(std::move(link)),
      name_(std::move(name)),
      flights_(link_->flights()),
      mode_(link_->wants_thread() ? Lane::Mode::kThread : mode),
      patience_(patience),
      after_call_(std::move(after_call)),
      mailbox_(*link_) {}

Member::~Member() { close(); }

void Member::require_own_process(const char* op, std::string_view tag) const {
  if (link_->origin().is_here()) return;
  throw CommError(
      {op, name_, -1, link_->rank(), std::string(tag)},
      link_->origin().fork_error(absl::StrCat("rank ", link_->number_of(link_->rank()))));
}

std::shared_ptr<Call> Member::start(const Collective& collective, std::vector<int> ranks) {
  const char* const op = to_string(collective.op);
  require_own_process(op, collective.tag);
  const bool is_message = traits_of(collective.op).tensors == OpTraits::Tensors::kMessage;
  const int64_t sequence = is_message ? -1 : ++sequence_;
  if (link_->has_failed()) {
    throw CommError({op, name_, sequence, link_->rank(), std::string(collective.tag)},
                    hear_failure());
  }
  const bool has_thread = this->has_thread(collective);
  std::call_once(has_caller_, [this] {
    const int rank = link_->rank();
    caller_ = std::make_shared<const Call::Caller>(
        Call::Caller{weak_from_this(), link_->origin(), name_, rank, link_->number_of(rank)});
  });
  report_life();
  auto call = std::make_shared<Call>(caller_,
                                     Call::Form{collective, sequence, has_thread, std::move(ranks)},
                                     is_message || !is_part() ? flights_ : nullptr);
  if (has_thread) {
    {
      const std::lock_guard lock(incoming_mutex_);
      incoming_.push_back(call);
      has_incoming_ = true;
    }
    serve();
    if (has_left_) go_on();  // nobody else does
  } else {
    const std::lock_guard lock(mutex_);
    take_in();
    accept(call);
    advance();
  }
  return call;
}

std::shared_ptr<Call> Member::run(const Collective& collective) {
  auto call = start(collective);
  if (!is_driven_elsewhere(*call)) {
    if (!call->is_over()) start_clock(*call, /*leaves_running=*/false);
    drive_on(*call, std::nullopt);
  }
  call->wait();
  return call;
}

/// Whether a thread goes on with it: with collectives in the background, and with a receive whose
/// sender waits for it.
bool Member::has_thread(const Collective& collective) const {
  if (link_->has_thread()) return true;
  if (collective.op == Op::kRecv) {
    return static_cast<int64_t>(collective.output.nbytes()) > ProcessGroup::kBufferedBytes;
  }
  return mode_ == Lane::Mode::kThread && collective.op != Op::kSend;
}

void Member::go_on() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) advance();
}

/// Whether only a thread goes on with it.
bool Member::is_driven_elsewhere(const Call& call) const {
  return link_->has_thread() || (call.has_thread() && !call.is_message());
}

void Member::look(const Call& call) noexcept {
  if (is_driven_elsewhere(call)) return;
  go_on();
  link_->advance_others();
  const auto now = Call::Clock::now();
  if (call.is_over() || now < next_look_.load(std::memory_order_relaxed)) return;
  next_look_.store(now + kLooksForTroubleEvery, std::memory_order_relaxed);
  look_for_trouble(now, {.timeout = kMaxTimeOut, .report_after = {}});  // who asks does not wait
}

void Member::help() noexcept {
  if (is_busy()) go_on();
}

void Member::await(Call& call) {
  if (!is_driven_elsewhere(call)) {
    drive(call, std::nullopt);
    return;
  }
  if (call.is_message()) call.restart_clock();
  WaitReport wait;
  wait.begin();
  const auto longest = patience_.timeout + kUnawareGrace;
  const auto slice = wait.is_heard() ? std::min(longest, WaitReport::kLong) : longest;
  auto next_look = Call::Clock::now() + longest;
  // Again and again, for the clock of a collective starts when those before it are over.
  while (!call.await_end(slice)) {
    const auto now = Call::Clock::now();
    if (wait.is_due(now)) note_wait(call, wait);
    if (now < next_look) continue;
    next_look = now + longest;
    const bool is_overdue = !call.is_accepted() || call.waited(now) >= longest;
    if (!link_->has_thread() || !is_overdue) continue;
    throw call.error(absl::StrCat("timed out: waited ", patience_.timeout.count(),
                                  " ms, and the thread that communicates has not returned from a "
                                  "call that does not block; end this process"));
  }
}

bool Member::await(Call& call, std::chrono::milliseconds longest) {
  if (is_driven_elsewhere(call)) {
    WaitReport wait;
    wait.begin();
    return call.await_end(longest);
  }
  return drive(call, Call::Clock::now() + bounded(longest));
}

/// Goes on with the group until the call is over, or until that time.
bool Member::drive(Call& call, std::optional<Call::Clock::time_point> until) {
  start_clock(call, until.has_value());
  go_on();
  link_->advance_others();
  return drive_on(call, until);
}

/// Of a call that is waited for, and of the one that it waits behind. A wait without an end starts
/// it anew; one of several short waits leaves it running.
void Member::start_clock(Call& call, bool leaves_running) {
  const auto start = [leaves_running](Call& one) {
    return leaves_running ? one.start_clock() : one.restart_clock();
  };
  start(call);
  if (call.is_message()) return;
  const std::lock_guard lock(mutex_);
  if (!calls_.empty()) start(*calls_.front());
}

/// The same as drive(), just after a look.
bool Member::drive_on(Call& call, std::optional<Call::Clock::time_point> until) {
  Pause pause(*this, &call);
  while (!call.is_over() && !(until.has_value() && Call::Clock::now() >= *until)) {
    link_->advance_others();
    pause.rest();
    pause.before_look();
    go_on();
  }
  return call.is_over();
}

/// Has the thread go on with what it has to, unless it does.
void Member::serve() {
  if (link_->has_thread()) return link_->wake();
  if (lane_ == nullptr) {
    lane_ = std::make_unique<Lane>(Lane::Mode::kThread, [this] {
      process_ends_ = true;
      link_->wake();
    });
  }
  if (is_serving_.exchange(true)) return link_->wake();
  try {
    lane_->post([this] { go_on_until_idle(); });
  } catch (...) {
    is_serving_ = false;
    throw;
  }
}

void Member::go_on_until_idle() {
  Pause pause(*this);
  while (true) {
    pause.before_look();
    go_on();
    if (!has_to_serve()) {
      is_serving_ = false;
      // A call that has come meanwhile has found it serving.
      if (!has_to_serve() || is_serving_.exchange(true)) return;
    }
    pause.rest();
  }
}

bool Member::has_to_serve() {
  const std::lock_guard lock(mutex_);
  if (process_ends_) end_calls(kProcessEnds);
  if (is_closing() || process_ends_) return false;
  take_in();
  return (mode_ == Lane::Mode::kThread && !calls_.empty()) || mailbox_.keeps_sender_waiting();
}

/// With the lock, like all that follow.
void Member::take_in() {
  if (!has_incoming_) return;
  std::vector<std::shared_ptr<Call>> incoming;
  {
    const std::lock_guard lock(incoming_mutex_);
    incoming.swap(incoming_);
    has_incoming_ = false;
  }
  for (const auto& call : incoming) accept(call);
}

void Member::accept(const std::shared_ptr<Call>& call) {
  set_idle(false);
  call->set_accepted();
  if (!call->is_message()) {
    begun_ = call->sequence() + 1;
    calls_.push_back(call);
    return guard([&] { call->transfer() = link_->prepare(*call); });
  }
  guard([&] { mailbox_.start(call); });
  if (link_->has_failed()) call->fail(link_->failure().cause);
}

void Member::advance() {
  guard([this] {
    take_in();
    link_->go_on();
    if (has_left_) return end_calls(closes_because_.load());
    if (process_ends_) return end_calls(kProcessEnds);
    if (link_->has_failed()) apply_failure(Call::Clock::now());
    if (mailbox_.is_busy()) mailbox_.advance();
    while (announce_next() || move()) {
    }
  });
  set_idle(calls_.empty() && !mailbox_.is_busy());
  if (is_closing() && link_->has_thread()) leave_when_idle();
}

/// Calls under way end first: if one rank gives up its part, the others wait for theirs in vain.
void Member::leave_when_idle() {
  if (has_left_ || has_incoming_ || !calls_.empty()) return;
  has_left_ = true;
  guard([this] {
    mailbox_.end_all(closes_because_.load());
    link_->leave();
  });
}

/// What goes wrong in `body` is everyone's failure: the others wait for this rank.
void Member::guard(absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const Fault& fault) {
    fail(fault);
  } catch (const CommError& error) {  // of what a call goes on with
    fail(Fault{error.cause()});
  } catch (const std::exception& error) {
    fail(Fault{absl::StrCat(link_->own_name(), " failed: ", error_text(error))});
  }
}

/// At each look of a waiting thread, so without an exchange: the lock is held.
void Member::set_idle(bool is_idle) {
  if (is_idle_.load(std::memory_order_relaxed) == is_idle) return;
  is_idle_.store(is_idle, std::memory_order_relaxed);
  link_->note_busy(!is_idle);
}

bool Member::announce_next() {
  if (announced_ == calls_.size() || link_->has_failed()) return false;
  Call& call = *calls_[announced_];
  if (!may_announce(call)) return false;
  if (announced_ == 0) call.restart_clock();
  call.transfer()->announce();
  ++announced_;
  return true;
}

bool Member::may_announce(Call& call) {
  if (!call.may_begin() || !link_->may_announce(call, static_cast<int64_t>(announced_))) {
    return false;
  }
  return std::none_of(
      calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(announced_),
      [&](const auto& earlier) { return share_memory(earlier->collective(), call.collective()); });
}

/// Goes on with the data of the first calls; whether one has ended.
bool Member::move() {
  bool is_over = false;
  for (size_t i = 0; i < announced_; ++i) {
    Call& call = *calls_[i];
    if (!call.is_compared()) {
      if (!link_->have_all_called(call.sequence())) break;
      const std::string problem = link_->difference(call.sequence());
      if (!problem.empty() && i > 0) break;  // the calls before it may end well
      if (!problem.empty()) throw Fault{problem};
      call.set_compared();
    }
    const Transfer::State state = call.transfer()->advance();
    if (state == Transfer::State::kMoving) break;
    is_over = is_over || (i == 0 && state == Transfer::State::kOver);
  }
  if (is_over) finish_front();
  return is_over;
}

void Member::finish_front() {
  const std::shared_ptr<Call> call = std::move(calls_.front());
  calls_.erase(calls_.begin());
  --announced_;
  link_->note_over(call->sequence());
  call->transfer() = nullptr;
  call->finish();
  if (!calls_.empty()) calls_.front()->restart_clock();
  link_->wake();  // a call of another group may go on with this one
  if (is_part()) after_call_();
}

void Member::close(const char* cause) {
  const char* open = nullptr;
  if (!closes_because_.compare_exchange_strong(open, cause)) return;
  if (link_->has_thread()) return link_->wake();
  {
    const std::lock_guard lock(mutex_);
    advance();  // what has come by now
    end_calls(link_->has_failed() ? link_->failure().cause : cause);
    mailbox_.end_all(cause);
    set_idle(true);
    link_->leave();
  }
  link_->wake();
  if (lane_ != nullptr) lane_->close();
}

void Member::leave() {
  if (is_part()) return;  // the group that it is part of does
  std::vector<std::shared_ptr<Call>> calls;
  if (mode_ == Lane::Mode::kThread) {
    const std::lock_guard lock(mutex_);
    take_in();
    calls = calls_;
  }
  for (const auto& call : calls) call->await_end();
  process_ends_ = true;
  link_->leave();
}

// --- How a group fails, by what, and who is told ---

namespace {

// How much longer the others wait than the first of those that wait, so that all hear its cause.
constexpr auto kForFirst = std::chrono::milliseconds(500);

/// "1 collective", "2 collectives".
std::string collectives_text(int64_t count) {
  return absl::StrCat(count, count == 1 ? " collective" : " collectives");
}

/// The ranks that the call, which has been announced, waits for.
std::vector<int> awaited(const Link& link, Call& call) {
  if (call.is_compared()) return call.transfer()->awaited();
  std::vector<int> ranks;
  for (int rank = 0; rank < link.size(); ++rank) {
    if (link.called_by(rank) <= call.sequence()) ranks.push_back(rank);
  }
  return ranks;
}

/// What it has finished may still be on its way.
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

/// Of several ranks that wait for the same ones, one speaks for all.
bool is_first_of_waiting(const Link& link, const std::vector<int>& missing) {
  int first = 0;
  while (first < link.size() && absl::c_linear_search(missing, first)) ++first;
  return first == link.rank();
}

/// Of the ranks that hold up the others, the one to name to the launcher: preferably one that is
/// stopped.
int culprit_among(const Link& link, const std::vector<int>& missing) {
  const auto stopped = absl::c_find_if(
      missing, [&](int rank) { return absl::StartsWith(link.activity_of(rank), "is stopped"); });
  return stopped == missing.end() ? missing.front() : *stopped;
}

/// The call of another group than `group` that the rank is in, of several the first; "" if none is
/// known.
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

/// Of a rank that waits in vain for a while. Takes the lock.
void Member::look_for_trouble(Call::Clock::time_point now, const Patience& patience) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread is at it
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
  // Most looks end here, and take nothing from the heap.
  if (!has_any_left && waited < std::min(patience.timeout, patience.report_after)) return;
  const std::vector<int> missing = awaited(*link_, call);
  if (absl::c_any_of(missing, [&](int rank) { return has_gone(*link_, rank, call); })) {
    advance();  // it may have done its part before it left
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

/// The group that this is part of judges what is noted here, unless it has gone.
void Member::note_awaited() {
  std::vector<Awaited> ranks = find_awaited();
  if (is_closing()) fail_as_left(*link_, ranks);
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// Threads that wait may not ask the link themselves.
void Member::note_awaited_for_callers(Call::Clock::time_point now) {
  std::vector<Awaited> ranks;
  if (announced_ > 0 && calls_.front()->waited(now) >= WaitReport::kLong) ranks = find_awaited();
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// Says where and for whom this thread waits: for the end of `call`, perhaps behind an earlier one,
/// which is then the one that others hold up.
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
} catch (const std::exception&) {  // no memory: nobody sees it
}

std::vector<Member::Awaited> Member::awaited_ranks() {
  if (!link_->has_thread()) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() ? find_awaited() : std::vector<Awaited>();
  }
  const std::lock_guard lock(awaited_mutex_);
  return awaited_;
}

/// Who is in a call of another group holds up the ranks there, too, so all ranks of the world get
/// the same cause.
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

/// This rank has found it, and tells the launcher before the others learn of it: of another rank,
/// in which call this one missed it.
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
