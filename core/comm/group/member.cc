#include "tessera/core/comm/group/member.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// Beyond the time-out, for the link's thread to notice it; after that the thread is stuck.
constexpr auto kUnawareGrace = std::chrono::seconds(5);
constexpr const char* kProcessEnds = "this process ends, and with it the thread that communicates";

}  // namespace

/// How a thread waits for the group: it looks for trouble now and then.
class Member::Pause {
 public:
  explicit Pause(Member& member) : member_(member) {}
  ~Pause() { member_.link_->end_rest(rest_); }
  Pause(const Pause&) = delete;

  void before_look() { member_.link_->before_look(rest_); }
  void rest() {
    if (rest_.is_slow) {
      const auto now = Call::Clock::now();
      if (now >= next_) {
        member_.look_for_trouble(now);
        next_ = now + kBetweenLooks;
      }
    }
    member_.link_->rest(rest_);
  }

 private:
  static constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

  Member& member_;
  Link::Rest rest_;
  Call::Clock::time_point next_;
};

Member::Member(std::unique_ptr<Link> link, std::string name, Lane::Mode mode, Patience patience,
               std::function<void()> after_call)
    : link_(std::move(link)),
      name_(std::make_shared<const std::string>(std::move(name))),
      flights_(link_->flights()),
      mode_(link_->wants_thread() ? Lane::Mode::kThread : mode),
      patience_(patience),
      after_call_(std::move(after_call)),
      mailbox_(*link_) {}

Member::~Member() { close(); }

void Member::require_own_process(const char* op, std::string_view tag) const {
  if (link_->origin().is_here()) return;
  throw CommError(
      {op, *name_, -1, link_->rank(), std::string(tag)},
      link_->origin().fork_error(absl::StrCat("rank ", link_->number_of(link_->rank()))));
}

std::shared_ptr<Call> Member::start(const Collective& collective, std::vector<int> ranks) {
  const char* const op = to_string(collective.op);
  require_own_process(op, collective.tag);
  const bool is_message = traits_of(collective.op).tensors == OpTraits::Tensors::kMessage;
  const int64_t sequence = is_message ? -1 : ++sequence_;
  if (link_->has_failed()) {
    throw CommError({op, *name_, sequence, link_->rank(), std::string(collective.tag)},
                    hear_failure());
  }
  const bool has_thread = this->has_thread(collective);
  auto call = std::make_shared<Call>(
      weak_from_this(), link_->origin(),
      Call::Form{collective, sequence, name_, link_->rank(), link_->number_of(link_->rank()),
                 has_thread, std::move(ranks)},
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
  if (!is_driven_elsewhere(call)) go_on();
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
  // Again and again, for the clock of a collective starts when those before it are over.
  while (!call.await_end(patience_.timeout + kUnawareGrace)) {
    const bool is_overdue =
        !call.is_accepted() || call.waited(Call::Clock::now()) >= patience_.timeout + kUnawareGrace;
    if (!link_->has_thread() || !is_overdue) continue;
    throw call.error(absl::StrCat("timed out: waited ", patience_.timeout.count(),
                                  " ms, and the thread that communicates has not returned from a "
                                  "call that does not block; end this process"));
  }
}

bool Member::await(Call& call, std::chrono::milliseconds longest) {
  if (is_driven_elsewhere(call)) return call.await_end(longest);
  return drive(call, Call::Clock::now() + bounded(longest));
}

/// Goes on with the group until the call is over, or until that time. A wait without an end starts
/// the call's clock; one of several short waits leaves it running.
bool Member::drive(Call& call, std::optional<Call::Clock::time_point> until) {
  const auto start = [&until](Call& one) {
    return until.has_value() ? one.start_clock() : one.restart_clock();
  };
  start(call);
  if (!call.is_message()) {
    const std::lock_guard lock(mutex_);
    if (!calls_.empty()) start(*calls_.front());
  }
  Pause pause(*this);
  while (true) {
    pause.before_look();
    go_on();
    if (call.is_over() || (until.has_value() && Call::Clock::now() >= *until)) break;
    link_->advance_others();
    pause.rest();
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

void Member::set_idle(bool is_idle) {
  if (is_idle_.exchange(is_idle, std::memory_order_relaxed) != is_idle) link_->note_busy(!is_idle);
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

}  // namespace tessera::internal
