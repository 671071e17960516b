#include "tessera/core/comm/mpi/link.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal::mpi {
namespace {

/// A transfer that was given up, with the call's tensors. Both are kept until MPI has ended the
/// transfer's messages.
struct Abandoned {
  std::unique_ptr<internal::Transfer> transfer;
  Collective collective;
};

/// Returns true if the last messages of `op` use only this call's own memory, so that the next call
/// may begin before they have arrived.
bool is_stream(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kAllGather;
}

/// This rank's part in a collective of a group: it moves the data in steps, one after the other.
///
/// Note [Calls that follow]
/// ~~~~~~~~~~~~~~~~~~~~~~~~
/// Calls end in order. But the last messages of a call take a while to arrive, and the network
/// would be idle until sender and receiver know that they have arrived. So the next call begins
/// once all messages of this call have been started, if the last of them use only this call's own
/// memory (is_stream()).
class CallTransfer final : public Transfer {
 public:
  CallTransfer(Link& link, Call& call) : link_(link), call_(call), ranks_(link.ranks()) {}

  void announce() override { link_.announce(call_); }

  State advance() override {
    if (exchange_ == nullptr) begin();
    has_begun_all_ = has_begun_all_ || take_steps();
    const bool is_first = link_.finished() == call_.sequence();
    if (!is_first || !has_begun_all_ || !exchange_->is_over() || !link_.world().has_sent()) {
      const bool may_follow = is_first && has_begun_all_ && is_stream(call_.record().signature.op);
      return may_follow ? State::kGiven : State::kMoving;
    }
    const std::string problem = steps_ == nullptr ? "" : steps_->problem();
    if (!problem.empty()) throw Fault{problem};
    link_.open(call_);
    return State::kOver;
  }

  std::vector<int> awaited() override {
    return exchange_ == nullptr ? std::vector<int>() : exchange_->open_ranks();
  }
  Exchange* exchange() override { return exchange_.get(); }

 private:
  void begin() {
    round_ = link_.round_of(call_.sequence());
    exchange_ = std::make_unique<Exchange>(link_.world().communicator(), ranks_->world_ranks(),
                                           round_->of(link_.rank()).data_tag);
    for (int rank = 0; rank < link_.size(); ++rank) {
      exchange_->set_tag_of(rank, round_->of(rank).data_tag);
    }
    steps_ = make_steps({.call = call_.collective(),
                         .round = *round_,
                         .rank = link_.rank(),
                         .size = link_.size(),
                         .link = link_,
                         .scratch = link_.scratch()});
  }

  /// Starts all steps that can start now. Returns true if no step is left.
  bool take_steps() {
    while (steps_ != nullptr && exchange_->is_over_but_for(steps_->lag())) {
      exchange_->begin_step();
      if (!steps_->advance(*exchange_)) return true;
    }
    return steps_ == nullptr;
  }

  Link& link_;
  Call& call_;
  // Kept alive by the transfer, because MPI may still use these after the call was given up.
  const std::shared_ptr<Ranks> ranks_;
  std::shared_ptr<const Round> round_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Steps> steps_;  // null if nothing is to be moved
  bool has_begun_all_ = false;
};

}  // namespace

Link::Link(std::shared_ptr<Ranks> ranks)
    : ranks_(std::move(ranks)), windows_(std::make_shared<Windows>(ranks_)) {}

std::unique_ptr<internal::Transfer> Link::prepare(Call& call) {
  return std::make_unique<CallTransfer>(*this, call);
}

Round& Link::make_round(int64_t sequence) {
  auto& round = rounds_[sequence];
  if (round == nullptr) round = std::make_shared<Round>(size());
  return *round;
}

void Link::announce(const Call& call) {
  const Collective& collective = call.collective();
  // The window opens first, because other ranks may read as soon as they know of this call.
  if (collective.op == Op::kMakeWindow) windows_->open(call.sequence(), collective.input);
  Envelope made = ranks_->envelope(Envelope::Kind::kCall);
  made.record = call.record();
  made.data_tag = world().communicator().draw_tag();
  const int64_t payload = payload_bytes(collective);
  if (payload > 0) copy_bytes(made.payload(), data_of(collective.input), payload);
  make_round(call.sequence()).set(rank(), made);
  ranks_->told(rank()).called = call.sequence() + 1;
  ranks_->send_to_others(made);
}

const CallRecord* Link::record_of(int rank, int64_t sequence) const {
  const auto round = rounds_.find(sequence);
  const bool is_known = round != rounds_.end() && round->second->has(rank);
  return is_known ? &round->second->of(rank).record : nullptr;
}

bool Link::have_all_called(int64_t sequence) const {
  const auto round = rounds_.find(sequence);
  return round != rounds_.end() && round->second->is_complete();
}

void Link::note_over(int64_t sequence) {
  rounds_.erase(sequence);
  finished_ = sequence + 1;
}

void Link::abandon(std::unique_ptr<internal::Transfer> transfer, const Collective& collective) {
  Exchange* const exchange = static_cast<Transfer&>(*transfer).exchange();
  if (exchange == nullptr) return;
  exchange->cancel();
  const auto owner = std::make_shared<Abandoned>(Abandoned{std::move(transfer), collective});
  world().keep({owner, exchange});
}

void Link::open(Call& call) {
  const Op op = call.record().signature.op;
  if (op == Op::kMakeWindow) call.made().memory = open_memory(windows_, call);
  if (op != Op::kSubgroup) return;
  const auto own = std::find(call.ranks().begin(), call.ranks().end(), rank());
  if (own == call.ranks().end()) return;
  std::vector<int> world_ranks;
  for (const int rank : call.ranks()) world_ranks.push_back(number_of(rank));
  call.made().link = std::make_unique<Link>(std::make_shared<Ranks>(
      ranks_->world_ptr(), group_key(absl::StrCat(key(), "/", call.sequence())),
      std::move(world_ranks), static_cast<int>(own - call.ranks().begin())));
}

void Link::go_on() { windows_->advance(*this, Call::Clock::now()); }

std::string Link::activity_of(int rank) const {
  const int number = number_of(rank);
  return world().is_neighbour(number) ? process_activity(world().place(number).pid) : "";
}

/// Returns how many calls `rank` has finished, as far as this rank knows. Another rank reports this
/// number only when it leaves. Until then this counts the calls that `rank` has begun and this rank
/// has finished.
int64_t Link::finished_by(int rank) const {
  if (has_left(rank)) return ranks_->told(rank).left_after;
  return rank == this->rank() ? finished_ : std::min(finished_, called_by(rank));
}

RankFlight Link::flight_of(int rank) const {
  const int number = number_of(rank);
  const World::Place place = world().place(number);
  return {.rank = number,
          .pid = place.pid,
          .host = place.host,
          .state = world().is_neighbour(number) ? process_state(place.pid) : "is on another host"};
}

bool Link::fail(const Failure& failure) noexcept {
  if (!ranks_->set_failure(failure)) return false;
  Progress::instance().run_soon([ranks = ranks_, failure] {
    ranks->world().note_failed_group(failure.cause);
    ranks->world().guard([&] { ranks->tell_failure(failure); });
  });
  return true;
}

bool Link::fail_world(std::string_view cause) noexcept {
  const bool is_first = world().set_failure(cause);
  if (const std::shared_ptr<HostRanks> host = world().host())
    host->fail(world().failure(), /*is_author=*/true);
  if (!is_first) return false;
  report_failure(-1, cause);
  Progress::instance().run_soon(
      [world = ranks_->world_ptr()] { world->guard([&] { world->tell_failure(); }); });
  return true;
}

/// Tells the other ranks that this rank leaves the group. If the group has failed, it tells them
/// the failure first, because they would otherwise see only that this rank has left.
void Link::leave() noexcept {
  if (std::exchange(is_gone_, true)) return;
  world().guard([this] {
    const Failure failure = ranks_->failure_of_group();
    if (!failure.cause.empty()) ranks_->tell_failure(failure);
    Envelope left = ranks_->envelope(Envelope::Kind::kLeft);
    left.number = finished_;
    ranks_->send_to_others(left);
    while (const std::optional<Arrival> arrival = next_arrival()) drop(*arrival);
  });
}

/// Wakes the progress thread. If that thread has ended, the calling thread itself ends the calls
/// that are under way.
void Link::wake() {
  if (Progress::instance().wake()) return;
  if (const auto member = member_.lock()) member->go_on();
}

void Link::attach(std::weak_ptr<Member> member) {
  member_ = member;
  world().note_made();
  Progress::instance().post([world = ranks_->world_ptr(), member = member.lock(), this] {
    world->guard([&] { world->add(member, *this); });
  });
}

void Link::take(int world_rank, const Envelope& envelope) {
  const int rank = ranks_->rank_of(world_rank);
  if (rank < 0) return;
  switch (envelope.kind) {
    case Envelope::Kind::kCall:
      ranks_->told(rank).called = envelope.record.sequence + 1;
      if (!is_gone_) make_round(envelope.record.sequence).set(rank, envelope);
      return;
    case Envelope::Kind::kMessage:
      return take_message(rank, envelope);
    case Envelope::Kind::kReceived:
      receipts_.insert({rank, envelope.data_tag});
      return;
    case Envelope::Kind::kLeft:
      ranks_->told(rank).left_after = envelope.number;
      return;
    case Envelope::Kind::kFailed:
      if (!ranks_->set_failure({std::string(envelope.cause()), envelope.number})) return;
      world().note_failed_group(std::string(envelope.cause()));
      return world().dump_flights(envelope.cause());
    case Envelope::Kind::kRead:
      return windows_->answer(rank, envelope);
    case Envelope::Kind::kAnswer:
      return windows_->take(rank, envelope);
    case Envelope::Kind::kClosed:
      return windows_->note_closed(rank, envelope.number);
    default:
      return;
  }
}

void Link::note_ended(int world_rank) {
  const int rank = ranks_->rank_of(world_rank);
  if (rank >= 0) windows_->note_ended(rank);
}

}  // namespace tessera::internal::mpi
