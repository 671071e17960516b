#include "tessera/core/comm/mpi/world.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include <ATen/ops/empty.h>
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"

namespace tessera::internal::mpi {
namespace {

constexpr int kEnvelopeTag = 0;
// How often a rank looks for late ranks.
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);
constexpr auto kBetweenLooksAtHost = std::chrono::milliseconds(100);
// After a failure on another host: how long the ranks of this host may go on with a collective of
// several hosts. This is less than kGrace, because after kGrace a rank that has thrown may end all
// ranks.
constexpr auto kUntilHostFails = internal::Link::kGrace * 3 / 4;
// After an MPI error: how long to wait for a report that a rank has died. The report comes from
// another rank of the dead rank's host, and may come later than the MPI error of a rank that sends
// to the dead rank.
constexpr auto kUntilTold = 3 * kBetweenLooksAtHost;

}  // namespace

void World::set_places(std::vector<Place> places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  places_ = std::move(places);
}

World::Place World::place(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return places_.empty() ? Place() : places_[static_cast<size_t>(rank)];
}

std::string World::place_of(int rank) const {
  const Place place = this->place(rank);
  return place.pid == 0 ? "" : absl::StrCat(" (pid ", place.pid, " on ", place.host, ")");
}

bool World::is_neighbour(int rank) const {
  const Place place = this->place(rank);
  return rank != this->rank() && place.pid != 0 && place.host == this->place(this->rank()).host;
}

void World::begin() {
  is_making_ = true;
  if (calls_.duplicate(comm_, &made_, &making_) != 0) set_failure("MPI_Comm_idup failed");
}

void World::get_ready() {
  communicator_.emplace(calls_, made_, [this] {
    // During look() do not call await_cause(), because that calls look(). fail_by() awaits the
    // cause later.
    if (is_looking_) return;
    await_cause();
    if (has_failed()) throw Fault{failure()};
  });
  for (UnderWay& incoming : incoming_) await_envelope(incoming);
  is_making_ = false;
  ready_.store(true, std::memory_order_release);
}

void World::await_envelope(UnderWay& incoming) {
  communicator_->check(calls_.receive(&incoming.envelope, sizeof(Envelope), Calls::kAnySource,
                                      kEnvelopeTag, communicator_->comm(), &incoming.request),
                       "MPI_Irecv");
}

void World::send(const Envelope& envelope, int to) {
  // A rank that has ended still waits for the kEnded of every other rank. It needs no other
  // envelope.
  if (ended_ranks_.count(to) != 0 && envelope.kind != Envelope::Kind::kEnded) return;
  UnderWay& outgoing = outgoing_.emplace_back();
  outgoing.envelope = envelope;
  const int code = calls_.send(&outgoing.envelope, sizeof(Envelope), to, kEnvelopeTag,
                               communicator_->comm(), &outgoing.request);
  if (code == 0) return;
  outgoing_.pop_back();
  // After a failure some ranks may be gone. The error is then ignored, so that the other ranks
  // still get their envelopes.
  if (!has_failed())
    communicator_->check(code, absl::StrCat("MPI_Isend to rank ", to, place_of(to)));
}

void World::send_to_others(const Envelope& envelope) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != this->rank()) send(envelope, rank);
  }
}

void World::add(const std::shared_ptr<Member>& member, Link& link) {
  made_groups_.fetch_sub(1);
  groups_[link.key()] = {member, &link};
  const auto early = early_.find(link.key());
  if (early == early_.end()) return;
  for (const Received& one : early->second) link.take(one.from, one.envelope);
  early_.erase(early);
}

void World::drain(int from, const Envelope& message) {
  if (Envelope::holds(message.data_bytes)) return;
  auto drained = std::make_shared<PairExchange>(*communicator_, from, message.data_tag,
                                                at::empty({message.data_bytes}, at::kByte));
  const bool is_answer = message.kind == Envelope::Kind::kAnswer;
  drained->exchange.receive(0, data_of(drained->memory), message.data_bytes,
                            is_answer ? Exchange::kUnaskedBytes : Exchange::kWhole);
  keep({drained, &drained->exchange});
}

void World::end_calls(std::string_view cause) {
  set_failure(cause);
  author_ = -1;
  for (const auto& [key, group] : groups_) group.link->end_at_once();
  advance_groups(Clock::now());
}

void World::end() {
  if (is_leaving_ || !is_ready()) return;
  is_leaving_ = true;
  patient_until_ = Clock::now() + patience_.timeout;
  for (const auto& [key, group] : groups_) group.link->windows().close_all();
}

void World::make_no_calls(const char* cause) {
  for (const auto& [key, group] : groups_) group.member->close(cause);
  advance_groups(Clock::now());
}

void World::end_unless_needed(Clock::time_point now) {
  for (const auto& [key, group] : groups_) {
    if (!group.link->windows().is_empty()) return;
    if (group.member->is_busy() && now < patient_until_) return;
  }
  ended_ = true;
  Envelope envelope;
  envelope.kind = Envelope::Kind::kEnded;
  send_to_others(envelope);
}

void World::dispatch(int from, const Envelope& envelope) {
  if (envelope.kind == Envelope::Kind::kEnded) {
    ended_ranks_.insert(from);
    for (const auto& [key, group] : groups_) group.link->note_ended(from);
    return;
  }
  if (envelope.group == 0) return take_failure(from, envelope);
  const auto group = groups_.find(envelope.group);
  if (group != groups_.end()) return group->second.link->take(from, envelope);
  if (gone_.count(envelope.group) != 0) return drain(from, envelope);
  early_[envelope.group].push_back({from, envelope});
}

void World::look() {
  if (is_making_) {
    int is_over = 0;
    int source = 0;
    if (calls_.test(&making_, &is_over, &source) == 0 && is_over != 0) get_ready();
    return;
  }
  if (!is_ready() || retired_) return;
  is_looking_ = true;
  const auto over = absl::MakeCleanup([this] { is_looking_ = false; });
  while (true) {
    UnderWay& incoming = incoming_[next_];
    const std::optional<int> source = communicator_->source_if_over(incoming.request);
    if (!source.has_value()) break;
    const Envelope envelope = incoming.envelope;
    await_envelope(incoming);
    next_ = (next_ + 1) % kReceives;
    dispatch(*source, envelope);
  }
  look_at_outgoing();
}

void World::look_at_outgoing() {
  std::exception_ptr problem;
  outgoing_.remove_if([&](UnderWay& outgoing) {
    try {
      return communicator_->is_over(outgoing.request);
    } catch (...) {
      problem = std::current_exception();
      return true;
    }
  });
  kept_.remove_if([](const auto& exchange) {
    try {
      return exchange->is_over();
    } catch (...) {  // the exchange was given up, and the other rank may be gone
      return true;
    }
  });
  if (problem != nullptr && !has_failed()) std::rethrow_exception(problem);
}

bool World::advance(Clock::time_point now) {
  const uint64_t before = is_ready() ? communicator_->ended() : 0;
  guard([&] {
    look_at_host(now);
    if (now >= host_fails_at_) fail_host();
    look();
    advance_groups(now);
    if (is_leaving_ && !ended_) end_unless_needed(now);
    if (ended_ && !retired_) retire(now);
  });
  return is_ready() && communicator_->ended() != before;
}

void World::advance_groups(Clock::time_point now) {
  const bool looks_for_trouble = now >= next_look_for_trouble_;
  if (looks_for_trouble) next_look_for_trouble_ = now + kBetweenLooks;
  for (auto place = groups_.begin(); place != groups_.end();) {
    const auto& [key, group] = *place;
    group.member->go_on();
    if (looks_for_trouble) group.member->look_for_trouble(now, group.member->patience());
    if (!group.link->is_over()) {
      ++place;
      continue;
    }
    gone_.insert(key);
    place = groups_.erase(place);
    if (groups_.empty() && made_groups_ == 0) end();
  }
}

bool World::is_busy() const {
  if (is_making_ || !outgoing_.empty() || !kept_.empty()) return true;
  if (host_fails_at_ != Clock::time_point::max()) return true;
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    return entry.second.member->is_busy() || entry.second.link->windows().has_reads();
  });
}

bool World::is_closing() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.member->is_closing(); });
}

bool World::has_sent() const { return outgoing_.empty() || !Progress::instance().gives_way(); }

bool World::is_asked() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.link->windows().is_asked(); });
}

void World::retire(Clock::time_point now) {
  if (static_cast<int>(ended_ranks_.size()) < size() - 1) {
    patient_until_ = now + patience_.timeout;
    return;
  }
  // Waits for the messages that are under way. From patient_until_ on this counts as a failure,
  // because a message does not complete if the other rank has given it up.
  if (!outgoing_.empty() || !kept_.empty()) {
    if (now > patient_until_) set_failure("what was under way when all ranks left has not ended");
    return;
  }
  if (!groups_.empty()) {  // groups that outlive MPI: their calls can never end
    end_calls(kFinalised);
    groups_.clear();
  }
  if (!outgoing_.empty() || !kept_.empty()) return;
  // No rank sends any more, so no envelope has begun to arrive, and the receives can be cancelled.
  for (UnderWay& incoming : incoming_) {
    calls_.cancel(&incoming.request);
    int is_over = 0;
    int source = 0;
    while (calls_.test(&incoming.request, &is_over, &source) == 0 && is_over == 0) {
    }
  }
  communicator_->release();
  retired_ = true;
}

// Failure: its causes, and which ranks are told.

std::string World::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool World::set_failure(std::string_view cause, int author) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.empty()) return false;
  failure_ = cause.empty() ? "no cause given" : cause.substr(0, Envelope::kCauseBytes);
  author_.store(author, std::memory_order_relaxed);
  has_failed_.store(true, std::memory_order_release);
  return true;
}

void World::watch(std::weak_ptr<HostRanks> host) {
  const std::lock_guard<std::mutex> lock(mutex_);
  host_ = std::move(host);
}

std::shared_ptr<HostRanks> World::host() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return host_.lock();
}

std::shared_ptr<FlightRing> World::flights() const {
  const std::shared_ptr<HostRanks> host = this->host();
  return host == nullptr ? flights_ : host->flights();
}

void World::dump_flights(std::string_view cause) {
  if (const std::shared_ptr<HostRanks> host = this->host()) return host->dump_flights(cause);
  if (flight_directory_.empty() || std::exchange(has_dumped_, true)) return;
  const RankFlight own{.rank = rank(),
                       .pid = ::getpid(),
                       .host = place(rank()).host,
                       .state = "runs",
                       .begun = flights_->begun(),
                       .records = flights_->last()};
  write_flight_dump(flight_directory_, rank(), {own}, cause, "flight-mpi-rank");
}

void World::tell_failure() {
  const std::string cause = failure();
  dump_flights(cause);
  const std::shared_ptr<HostRanks> host = this->host();
  const bool is_lost = host != nullptr && !host->lost_rank().empty();
  Envelope envelope;
  envelope.kind = is_lost ? Envelope::Kind::kLost : Envelope::Kind::kFailed;
  envelope.set_cause(cause);
  send_to_others(envelope);
  fail_host();
}

/// Fails the world with the failure that rank `from` has sent. If a rank has died, the ranks of
/// this host are told at once. Otherwise they are told kUntilHostFails later, because a collective
/// of several hosts may still succeed there.
void World::take_failure(int from, const Envelope& envelope) {
  const bool is_lost = envelope.kind == Envelope::Kind::kLost;
  if (!set_failure(envelope.cause(), is_lost ? -1 : from)) return;
  dump_flights(envelope.cause());
  if (is_lost) return fail_host();
  host_fails_at_ = Clock::now() + kUntilHostFails;
}

/// Fails the world because of `error`, an MPI error or an error in this rank's part of a call.
void World::fail_by(const std::exception& error) {
  if (!has_failed()) await_cause();
  const std::string cause = absl::StrCat(
      is_ready() ? absl::StrCat("rank ", rank(), " failed: ") : std::string(), error_text(error));
  if (!set_failure(cause)) return;
  report_failure(-1, cause);
  try {
    if (is_ready()) tell_failure();
  } catch (...) {  // MPI may fail again; the other ranks then time out
  }
}

/// Checks at intervals whether a rank of this host has died: MPI does not report that, and ranks
/// may wait for others that wait for the dead rank. The checks stop once this rank has ended,
/// because a rank that has seen all ranks end may exit, which is no failure.
void World::look_at_host(Clock::time_point now) {
  if (now < next_look_at_host_ || !is_ready() || ended_) return;
  next_look_at_host_ = now + kBetweenLooksAtHost;
  fail_if_lost();
}

/// Fails the world, and tells all ranks, if the ranks of this host have failed or one of them has
/// died.
void World::fail_if_lost() {
  const std::shared_ptr<HostRanks> host = this->host();
  const std::string cause = host == nullptr ? "" : host->failure();
  if (!cause.empty() && set_failure(cause)) tell_failure();
}

/// Waits briefly for the cause of an MPI error: a rank may have died, which the ranks of its host
/// report.
void World::await_cause() {
  if (!is_ready() || host() == nullptr) return;
  for (const auto end = Clock::now() + kUntilTold; !has_failed() && Clock::now() < end;) {
    try {
      fail_if_lost();
      look();
    } catch (...) {  // another MPI error
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void World::fail_host() {
  host_fails_at_ = Clock::time_point::max();
  if (const std::shared_ptr<HostRanks> host = this->host())
    host->fail(failure(), /*is_author=*/false);
}

void World::abort_all() {
  // Aborts MPI_COMM_WORLD if this world was made from it: MPICH then tells the launcher, which ends
  // all ranks. For a duplicate, MPICH tells the ranks one by one, and a rank that does not call MPI
  // is not reached.
  const bool is_of_all = comm_ == calls_.world();
  calls_.abort(is_ready() && !is_of_all ? communicator_->comm() : comm_, 1);
}

}  // namespace tessera::internal::mpi
