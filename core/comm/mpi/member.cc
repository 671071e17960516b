#include "tessera/core/comm/mpi/member.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/departure.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"

namespace tessera::internal::mpi {
namespace {

bool is_stream(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kAllGather;
}

}  // namespace

struct Member::Active {
  std::shared_ptr<Member> member;  // whose memory the transfers use
  std::shared_ptr<Call> call;
  Collective collective;  // keeps the tensors after the call has failed
  std::unique_ptr<Round> round;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Transfer> transfer;
  bool is_begun_to_the_end = false;  // no transfer is left to start
};

Member::Member(std::shared_ptr<World> world, std::string name, std::vector<int> world_ranks,
               int rank)
    : world_(std::move(world)),
      name_(std::move(name)),
      key_(group_key(name_)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      mailbox_(*this),
      windows_(*this),
      reads_(*this) {}

std::string Member::failure() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) return failure_;
  }
  return world_->failure();
}

void Member::require_own_process(const char* op, std::string_view tag) const {
  const Origin& origin = world_->origin();
  if (origin.is_here()) return;
  throw CommError({op, name_, -1, rank_, std::string(tag)},
                  origin.fork_error(absl::StrCat("rank ", world_->rank())));
}

void Member::require_usable(const char* op, int64_t sequence, std::string_view tag) const {
  require_own_process(op, tag);
  const std::string cause = failure();
  if (!cause.empty()) throw CommError({op, name_, sequence, rank_, std::string(tag)}, cause);
}

std::shared_ptr<Call> Member::make_call(const Collective& collective, int64_t sequence,
                                        const char* name) const {
  return std::make_shared<Call>(collective, name_, rank_, sequence, world_->patience(),
                                name == nullptr ? world_->ring() : nullptr, name);
}

Envelope Member::envelope(Envelope::Kind kind) const {
  Envelope made;
  made.kind = kind;
  made.group = key_;
  return made;
}

/// This rank's neighbour first, so that ranks do not all send to rank 0 at once.
void Member::send_to_others(const Envelope& envelope) {
  for (int peer = 1; peer < size(); ++peer) {
    world_->send(envelope, world_rank((rank_ + peer) % size()));
  }
}

Round& Member::round_of(int64_t sequence) {
  return rounds_.try_emplace(sequence, size()).first->second;
}

/// Whether its data goes into the envelope.
bool Member::is_small(const Call& call) const { return payload_bytes(call.collective()) > 0; }

void Member::send_call(const Call& call) {
  Envelope made = envelope(Envelope::Kind::kCall);
  made.sequence = call.sequence();
  made.signature = call.signature();
  made.slice = call.collective().slice;
  made.data_tag = world_->link().draw_tag();
  made.set_tag(call.tag());
  if (is_small(call)) {
    std::memcpy(made.payload(), data_of(call.collective().input),
                static_cast<size_t>(payload_bytes(call.collective())));
  }
  round_of(call.sequence()).set(rank_, made);
  send_to_others(made);
}

void Member::open_window(int64_t number, at::Tensor own) {
  if (failure().empty()) windows_.open(number, std::move(own));  // else nobody would end it
}

void Member::start(std::shared_ptr<Call> call) {
  const std::string cause = failure();
  if (!cause.empty()) return call->fail(cause);
  // The others learn of it at once, except that small data may still be an earlier call's result.
  const bool tells_now = !is_small(*call);
  calls_.push_back(std::move(call));
  if (tells_now) send_call(*calls_.back());
}

/// -1 of a rank that is not in the group.
int Member::rank_of(int world_rank) const {
  const auto found = std::lower_bound(world_ranks_.begin(), world_ranks_.end(), world_rank);
  if (found == world_ranks_.end() || *found != world_rank) return -1;
  return static_cast<int>(found - world_ranks_.begin());
}

void Member::take(int world_rank, const Envelope& envelope) {
  const int rank = rank_of(world_rank);
  if (rank < 0) return;
  switch (envelope.kind) {
    case Envelope::Kind::kCall:
      called_[rank] = envelope.sequence + 1;
      if (!is_gone_ && (doom_.has_value() || failure().empty())) {
        round_of(envelope.sequence).set(rank, envelope);
      }
      return;
    case Envelope::Kind::kMessage:
      if (!is_gone_ && failure().empty()) return mailbox_.take(rank, envelope);
      return world_->drain(world_rank, envelope);
    case Envelope::Kind::kReceived:
      return mailbox_.note_received(rank, envelope.data_tag);
    case Envelope::Kind::kLeft:
      left_[rank] = envelope.sequence;
      return;
    case Envelope::Kind::kFailed:
      return take_failure(std::string(envelope.cause()));
    case Envelope::Kind::kRead:
      return windows_.answer(rank, envelope);
    case Envelope::Kind::kAnswer:
    case Envelope::Kind::kRefused:
      return reads_.take(rank, envelope);
    case Envelope::Kind::kClosed:
      return windows_.note_closed(rank, envelope.sequence);
    default:
      return;
  }
}

void Member::take_failure(const std::string& cause) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = cause;
  }
  world_->note_failed_group(cause);
  end_all(cause);
}

void Member::note_ended(int world_rank) {
  const int rank = rank_of(world_rank);
  if (rank < 0) return;
  windows_.note_ended(rank);
  reads_.note_ended(rank);
}

bool Member::advance(Call::Clock::time_point now) {
  end_if_doomed(now);
  go_when_idle();
  bool moved = mailbox_.advance(now);
  moved = reads_.advance(now) || moved;
  while (go_on(now)) moved = true;
  return moved;
}

/// Takes one step with the calls; false where there is none to take now.
bool Member::go_on(Call::Clock::time_point now) {
  if (active_.size() < calls_.size() && (active_.empty() || may_follow())) return begin_next();
  if (active_.empty()) return false;
  if (active_.size() > 1 && move(*active_.front(), now)) return true;
  if (active_.empty()) return false;  // it has failed
  Active& last = *active_.back();
  return last.round == nullptr ? compare(last, now) : move(last, now);
}

bool Member::begin_next() {
  const std::shared_ptr<Call>& call = calls_[active_.size()];
  if (!may_begin(*call)) return false;
  call->restart_clock();
  auto active = std::make_shared<Active>();
  active->member = shared_from_this();
  active->call = call;
  active->collective = call->collective();
  active_.push_back(std::move(active));
  if (is_small(*call)) send_call(*call);
  return true;
}

// Note [Calls that follow]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Calls are over one after the other. But when all transfers of one have begun, what is under way
// takes a while to come, and the link would lie idle until both ranks have seen its end: the next
// call begins meanwhile, if it is equal on all ranks, has no part in the memory of the first and
// both are of the ops whose last transfers need no other memory than the call's.
bool Member::may_follow() {
  if (active_.size() > 1 || !active_.front()->is_begun_to_the_end) return false;
  const Collective& first = active_.front()->collective;
  const Collective& next = calls_[1]->collective();
  if (!is_stream(first.op) || !is_stream(next.op) || is_small(*calls_[1])) return false;
  if (share_memory(first, next)) return false;
  const Round& round = round_of(calls_[1]->sequence());
  return round.is_complete() && difference(round).empty() &&
         (next.op != Op::kReduceScatter || slice_problem(round).empty());
}

/// Whether what it goes on with has finished; what that one failed with is this group's failure.
bool Member::may_begin(Call& call) {
  try {
    return call.may_begin();
  } catch (const CommError& error) {
    fail(error.cause(), -1);
    return false;
  }
}

/// Whether all calls are there, and equal.
bool Member::compare(Active& active, Call::Clock::time_point now) {
  const Call& call = *active.call;
  Round& round = round_of(call.sequence());
  if (!round.is_complete()) {
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank) {
      if (round.has(rank)) continue;
      missing.push_back(rank);
      if (!has_left(rank)) continue;
      fail(departure_cause(name_of(rank), left_[rank]), rank);
      return false;
    }
    if (call.is_late(now)) {
      time_out(call, missing, difference(round));
    } else if (active.call->is_to_be_reported(now) && is_first_of(round)) {
      report_wait(active.call, missing);
    }
    return false;
  }
  std::string problem = difference(round);
  if (problem.empty() && call.signature().op == Op::kReduceScatter) problem = slice_problem(round);
  if (!problem.empty()) {
    fail(problem, -1);
    return false;
  }
  active.round = std::make_unique<Round>(std::move(round));
  rounds_.erase(call.sequence());
  active.exchange =
      std::make_unique<Exchange>(world_->link(), world_ranks_, active.round->of(rank_).data_tag);
  for (int rank = 0; rank < size(); ++rank) {
    active.exchange->set_tag_of(rank, active.round->of(rank).data_tag);
  }
  active.transfer = make_transfer({.call = active.collective,
                                   .round = *active.round,
                                   .rank = rank_,
                                   .size = size(),
                                   .world_ranks = world_ranks_,
                                   .scratch = scratch_});
  return true;
}

bool Member::move(Active& active, Call::Clock::time_point now) {
  Exchange& exchange = *active.exchange;
  const int64_t lag = active.transfer == nullptr ? 0 : active.transfer->lag();
  bool can_go_on = exchange.is_over_but_for(lag);
  if (can_go_on) {
    exchange.begin_step();
    if (active.transfer != nullptr && active.transfer->advance(exchange)) return true;
    active.is_begun_to_the_end = true;
    can_go_on = exchange.is_over();  // what is left of the last steps
  }
  if (!can_go_on) {
    if (active.call->is_late(now)) {
      time_out(*active.call, exchange.open_ranks(), "");
    } else if (active.call->is_to_be_reported(now)) {
      report_wait(active.call, exchange.open_ranks());
    }
    return false;
  }
  if (&active != active_.front().get()) return false;
  const std::string problem = active.transfer == nullptr ? "" : active.transfer->problem();
  if (!problem.empty()) {
    fail(problem, -1);
    return false;
  }
  return finish();
}

bool Member::finish() {
  ++finished_;
  world_->count_sent(active_.front()->exchange->sent_bytes());
  const std::shared_ptr<Call> call = std::move(calls_.front());
  calls_.pop_front();
  active_.pop_front();
  call->finish();
  return true;
}

void Member::say_left() {
  Envelope made = envelope(Envelope::Kind::kLeft);
  made.sequence = finished_;
  send_to_others(made);
}

void Member::leave() {
  makes_no_calls_ = leaves_ = true;
  mailbox_.end_all("the group was destroyed while this message was under way");
}

/// Calls under way end first: data cancelled on one side would keep the other's for ever.
void Member::go_when_idle() {
  if (!makes_no_calls_ || !calls_.empty()) return;
  makes_no_calls_ = false;
  say_left();
  if (!leaves_) return;
  is_gone_ = true;
  end_calls("the group was destroyed");
}

void Member::fail(const std::string& cause, int culprit) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = cause;
  }
  world_->note_failed_group(cause);
  if (culprit == rank_) culprit = -1;
  std::string text = cause;
  if (!calls_.empty()) {
    const Call& call = *calls_.front();
    text = CommError({to_string(call.signature().op), name_, call.sequence(), rank_, call.tag()},
                     cause)
               .what();
  }
  report_failure(culprit < 0 ? -1 : world_rank(culprit), culprit < 0 ? cause : text);
  world_->flights().dump(text);
  Envelope made = envelope(Envelope::Kind::kFailed);
  made.set_cause(cause);
  send_to_others(made);
  end_all(cause);
}

// Note [Failures overtake data]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A rank that throws ends its world, and the envelope that says so comes before data that it, or a
// third rank, has sent earlier. So a rank could lose a collective that the thrower has finished: of
// an error that all ranks find by that collective and throw alike, it would name only that another
// rank has left. What the thrower had called may therefore still end well, but not for long: if it
// had not finished, its part never comes. The ranks of this host hear of it a little later, for a
// collective of several hosts goes on among them. A rank that has died finishes nothing: of that
// everyone hears at once.
void Member::end_all_after(int world_rank, const std::string& cause) {
  const auto called = called_.find(rank_of(world_rank));
  const int64_t sequence = called == called_.end() ? 0 : called->second;
  doom_ = Doom{cause, sequence, Call::Clock::now() + World::kDoomed};
  mailbox_.end_all(cause);
  reads_.end_all(cause);
}

void Member::end_if_doomed(Call::Clock::time_point now) {
  if (!doom_.has_value()) return;
  const bool goes_on = !calls_.empty() && calls_.front()->sequence() < doom_->sequence;
  if (goes_on && now < doom_->deadline && !calls_.front()->is_late(now)) return;
  const std::string cause = std::exchange(doom_, {})->cause;
  end_all(cause);
}

void Member::end_all(const std::string& cause) {
  end_calls(cause);
  windows_.end_all();
  reads_.end_all(cause);
}

void Member::end_calls(const std::string& cause) {
  for (const auto& active : std::exchange(active_, {})) {
    if (active->exchange == nullptr) continue;
    active->exchange->cancel();
    world_->keep(*active->exchange, active);
  }
  for (const auto& call : std::exchange(calls_, {})) call->fail(cause);
  rounds_.clear();
  mailbox_.end_all(cause);
}

}  // namespace tessera::internal::mpi
