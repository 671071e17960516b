#include "tessera/core/comm/group/member.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// How long after the time-out the link's thread may take to notice it. After that the thread counts
// as stuck.
constexpr auto kUnawareGrace = std::chrono::seconds(5);
// The first of the ranks that wait throws at its time-out. The others wait this much longer, so
// that all of them throw the first one's cause.
constexpr auto kForFirst = std::chrono::milliseconds(500);
constexpr auto kLooksForTroubleEvery = std::chrono::milliseconds(20);
constexpr const char* kProcessEnds = "this process ends, and with it the thread that communicates";

}  // namespace

/// Lets a thread wait for the group. Looks for trouble now and then. If the thread waits for the
/// end of `call`, also reports the wait.
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
    if (has_left_) go_on();  // the link's thread does not advance calls any more
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

/// Returns true if a background thread advances the call. The link's thread, if there is one,
/// advances every call. Without it, the lane's thread advances receives that are too large to be
/// buffered, because their senders wait. If the mode is kThread, it also advances collectives.
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

/// Returns true if only a background thread advances the call, and threads that wait for it do not.
bool Member::is_driven_elsewhere(const Call& call) const {
  return link_->has_thread() || (call.has_thread() && !call.is_message());
}

void Member::look(const Call& call) noexcept {
  if (is_driven_elsewhere(call)) return;
  go_on();
  link_->advance_others();
  if (call.is_over()) return;
  const auto now = Call::Clock::now();
  if (now < next_look_.load(std::memory_order_relaxed)) return;
  next_look_.store(now + kLooksForTroubleEvery, std::memory_order_relaxed);
  // The caller asks and does not wait, so no time-out applies.
  look_for_trouble(now, {.timeout = kMaxTimeOut, .report_after = {}});
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
  // A collective's clock starts only when the collectives before it are over, so it may not have
  // reached `longest` when await_end() returns. Then the wait goes on.
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

/// Advances the group until the call is over or `until` has passed. Returns true if the call is
/// over.
bool Member::drive(Call& call, std::optional<Call::Clock::time_point> until) {
  start_clock(call, until.has_value());
  go_on();
  return drive_on(call, until);
}

/// Starts the clock of `call` and the clock of the oldest call, because the oldest call must end
/// first. Restarts clocks that run already, unless `leaves_running`. Short waits leave them
/// running, so that the times of all short waits for one call add up.
void Member::start_clock(Call& call, bool leaves_running) {
  const auto start = [leaves_running](Call& one) {
    return leaves_running ? one.start_clock() : one.restart_clock();
  };
  start(call);
  if (call.is_message()) return;
  const std::lock_guard lock(mutex_);
  if (!calls_.empty()) start(*calls_.front());
}

/// Like drive(), for a caller that has just advanced the group.
bool Member::drive_on(Call& call, std::optional<Call::Clock::time_point> until) {
  Pause pause(*this, &call);
  for (; !call.is_over(); go_on()) {
    // Before the look at `until`, so that even a wait of no time advances the other groups.
    link_->advance_others();
    if (until.has_value() && Call::Clock::now() >= *until) break;
    pause.rest();
    pause.before_look();
  }
  return call.is_over();
}

/// Wakes or starts the thread that advances calls.
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
      // Looks again: a call that arrived while is_serving_ was still set has posted no task.
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

/// Accepts the calls that have been started. Requires mutex_, like all functions down to
/// finish_front().
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

/// Leaves the group, but not while calls are under way: other ranks still wait for this rank's part
/// in them.
void Member::leave_when_idle() {
  if (has_left_ || has_incoming_ || !calls_.empty()) return;
  has_left_ = true;
  guard([this] {
    mailbox_.end_all(closes_because_.load());
    link_->leave();
  });
}

/// Runs `body`. An exception fails the group on all ranks, because the others wait for this rank.
void Member::guard(absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const Fault& fault) {
    fail(fault);
  } catch (const CommError& error) {  // from a Work that a call depends on
    fail(Fault{error.cause()});
  } catch (const std::exception& error) {
    fail(Fault{absl::StrCat(link_->own_name(), " failed: ", error_text(error))});
  }
}

/// Notes in this object and in the link whether nothing is under way. A waiting thread calls this
/// at each look, so it avoids an atomic exchange. A load and a store are enough, because the caller
/// holds mutex_.
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

/// Moves the data of the announced calls. Returns true if the oldest call has ended.
bool Member::move() {
  bool is_over = false;
  for (size_t i = 0; i < announced_; ++i) {
    Call& call = *calls_[i];
    if (!call.is_compared()) {
      if (!link_->have_all_called(call.sequence())) break;
      const std::string problem = link_->difference(call.sequence());
      // Calls before this one may still end well. So the difference fails the group only once this
      // call is the oldest.
      if (!problem.empty() && i > 0) break;
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
  link_->wake();  // a call of another group may wait for this call
  if (is_part()) after_call_();
}

void Member::close(const char* cause) {
  const char* open = nullptr;
  if (!closes_because_.compare_exchange_strong(open, cause)) return;
  if (link_->has_thread()) return link_->wake();
  {
    const std::lock_guard lock(mutex_);
    advance();  // so that calls whose data has arrived by now end well
    end_calls(link_->has_failed() ? link_->failure().cause : cause);
    mailbox_.end_all(cause);
    set_idle(true);
    link_->leave();
  }
  link_->wake();
  if (lane_ != nullptr) lane_->close();
}

void Member::leave() {
  // If this member is part of another group, that group says that this rank has left.
  if (is_part()) return;
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

/// Does nothing if another thread holds the lock.
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
    return fail_if_gone(*link_, find_awaited());
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

std::vector<AwaitedRank> Member::find_awaited() const {
  std::vector<AwaitedRank> ranks;
  if (announced_ == 0) return ranks;
  Call& call = *calls_.front();
  for (const int rank : awaited(*link_, call)) {
    ranks.push_back({rank, has_gone(*link_, rank, call)});
  }
  return ranks;
}

/// Notes which ranks are awaited, for the group that this member is part of. That group looks for
/// late ranks, except while this member is closing: then this function throws Fault if an awaited
/// rank has left.
void Member::note_awaited() {
  std::vector<AwaitedRank> ranks = find_awaited();
  if (is_closing()) fail_if_gone(*link_, ranks);
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// If the oldest call has waited long, notes in awaited_ which ranks it waits for. Other threads
/// read awaited_, because they may not ask the link themselves.
void Member::note_awaited_for_callers(Call::Clock::time_point now) {
  std::vector<AwaitedRank> ranks;
  if (announced_ > 0 && calls_.front()->waited(now) >= WaitReport::kLong) ranks = find_awaited();
  const std::lock_guard lock(awaited_mutex_);
  awaited_ = std::move(ranks);
}

/// Notes in `wait` the call that this thread waits for, and the ranks that the call waits for. A
/// collective cannot end before the oldest collective under way, so the oldest one is noted instead
/// of `call`, with the ranks that it waits for. If the link has a thread, only that thread may read
/// calls_. Then `call` itself is noted, with the ranks that the oldest collective waits for.
void Member::note_wait(Call& call, WaitReport& wait) noexcept try {
  std::vector<int> numbers;
  const auto note = [&](const Call& one) { wait.note(one.text(), name_, one.sequence(), numbers); };
  if (call.is_message()) {
    const int peer = call.collective().peer;
    if (peer >= 0 && peer < link_->size()) numbers.push_back(link_->number_of(peer));
    return note(call);
  }
  if (link_->has_thread()) {
    for (const AwaitedRank& awaited : awaited_ranks()) {
      numbers.push_back(link_->number_of(awaited.rank));
    }
    return note(call);
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || calls_.empty()) return;
  for (const AwaitedRank& awaited : find_awaited())
    numbers.push_back(link_->number_of(awaited.rank));
  note(*calls_.front());
} catch (const std::exception&) {  // out of memory: the wait is not noted
}

std::vector<AwaitedRank> Member::awaited_ranks() {
  if (!link_->has_thread()) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() ? find_awaited() : std::vector<AwaitedRank>();
  }
  const std::lock_guard lock(awaited_mutex_);
  return awaited_;
}

/// Throws the time-out. An overdue rank may itself wait in a call of another group, and the ranks
/// of that group then wait without end, too. In this case the time-out fails the whole world, so
/// that the ranks of both groups get the same cause.
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
