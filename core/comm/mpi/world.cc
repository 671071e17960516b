#include "tessera/core/comm/mpi/world.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/flight_recorder/flight_dump.h"
#include "tessera/core/comm/mpi/member.h"

namespace tessera::internal::mpi {
namespace {

constexpr int kEnvelopeTag = 0;

/// A message's data that nobody wants.
struct Drained {
  explicit Drained(Link& link, int from, int tag, int64_t bytes, bool is_in_pieces)
      : ranks{from}, data(at::empty({bytes}, at::kByte)), exchange(link, ranks, Exchange::kNoTag) {
    exchange.set_tag_of(0, tag);
    if (is_in_pieces) {
      exchange.receive_in_pieces(0, data_of(data), bytes);
    } else {
      exchange.receive(0, data_of(data), bytes);
    }
  }
  const std::vector<int> ranks;
  const at::Tensor data;
  Exchange exchange;
};

}  // namespace

void World::set_places(std::vector<Place> places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  places_ = std::move(places);
}

std::string World::place_of(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (places_.empty()) return "";
  const Place& place = places_[static_cast<size_t>(rank)];
  return absl::StrCat(" (pid ", place.pid, " on ", place.host, ")");
}

int World::pid_of(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return places_.empty() ? 0 : places_[static_cast<size_t>(rank)].pid;
}

std::string World::host_of(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return places_.empty() ? "" : places_[static_cast<size_t>(rank)].host;
}

void World::begin() {
  is_making_ = true;
  if (calls_.duplicate(comm_, &made_, &making_) != 0) set_failure("MPI_Comm_idup failed");
}

void World::get_ready() {
  link_.emplace(calls_, made_);
  for (Incoming& incoming : incoming_) await_envelope(incoming);
  is_making_ = false;
  ready_.store(true, std::memory_order_release);
}

void World::await_envelope(Incoming& incoming) {
  link_->check(calls_.receive(&incoming.envelope, sizeof(Envelope), Calls::kAnySource, kEnvelopeTag,
                              link_->comm(), &incoming.request),
               "MPI_Irecv");
}

void World::send(const Envelope& envelope, int to) {
  // A rank that has ended still waits for the others' last envelopes.
  if (ended_ranks_.count(to) != 0 && envelope.kind != Envelope::Kind::kEnded) return;
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.envelope = envelope;
  const int code = calls_.send(&outgoing.envelope, sizeof(Envelope), to, kEnvelopeTag,
                               link_->comm(), &outgoing.request);
  if (code == 0) return;
  outgoing_.pop_back();
  // After a failure some ranks may be gone, which keeps nothing from the others.
  if (failure().empty()) link_->check(code, absl::StrCat("MPI_Isend to rank ", to, place_of(to)));
}

void World::send_to_others(const Envelope& envelope) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != this->rank()) send(envelope, rank);
  }
}

void World::add(const std::shared_ptr<Member>& member) {
  members_[member->key()] = member;
  const auto early = early_.find(member->key());
  if (early == early_.end()) return;
  for (const Early& one : early->second) member->take(one.from, one.envelope);
  early_.erase(early);
}

void World::remove(const Member& member) {
  gone_.insert(member.key());
  members_.erase(member.key());
  if (members_.empty()) end();
}

std::string World::ranks_that_stay() const {
  std::vector<std::string> staying;
  for (int rank = 0; is_ready() && rank < size(); ++rank) {
    if (rank == this->rank() || has_ended(rank)) continue;
    const bool is_near = pid_of(rank) != 0 && host_of(rank) == host_of(this->rank());
    staying.push_back(
        absl::StrCat("rank ", rank, place_of(rank),
                     is_near ? absl::StrCat(", which ", process_state(pid_of(rank))) : ""));
  }
  return absl::StrJoin(staying, ", ");
}

void World::keep(Exchange& exchange, std::shared_ptr<void> owner) {
  kept_.push_back({&exchange, std::move(owner)});
}

void World::drain(int from, const Envelope& message) {
  const CallSignature& call = message.signature;
  const int64_t bytes = call.numel * static_cast<int64_t>(c10::elementSize(call.dtype));
  if (bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) return;
  auto drained = std::make_shared<Drained>(*link_, from, message.data_tag, bytes,
                                           message.kind == Envelope::Kind::kAnswer);
  keep(drained->exchange, drained);
}

void World::end_calls(const std::string& cause) {
  for (const auto& [key, member] : members_) member->end_all(cause);
}

void World::end() {
  if (is_leaving_ || !is_ready()) return;
  is_leaving_ = true;
  patient_until_ = Clock::now() + patience_.timeout;
  for (const auto& [key, member] : members_) member->close_windows();
}

void World::make_no_calls() {
  for (const auto& [key, member] : members_) member->make_no_calls();
}

void World::end_unless_needed(Clock::time_point now) {
  if (flights_.stays(now)) return;
  for (const auto& [key, member] : members_) {
    if (member->has_windows()) return;
    if (member->has_calls() && now < patient_until_) return;
  }
  ended_ = true;
  Envelope envelope;
  envelope.kind = Envelope::Kind::kEnded;
  send_to_others(envelope);
}

void World::dispatch(int from, const Envelope& envelope) {
  if (envelope.kind == Envelope::Kind::kEnded) {
    ended_ranks_.insert(from);
    flights_.note_ended(from);
    for (const auto& [key, member] : members_) member->note_ended(from);
    return;
  }
  if (envelope.kind == Envelope::Kind::kAskFlight) {
    if (!ended_) flights_.answer(from, envelope);
    return;
  }
  if (envelope.kind == Envelope::Kind::kFlight) return flights_.take(from, envelope);
  if (envelope.kind == Envelope::Kind::kAsksNoMore) return flights_.note_asks_no_more(from);
  if (envelope.group == 0) return take_failure(from, envelope);
  const auto member = members_.find(envelope.group);
  if (member != members_.end()) {
    const std::shared_ptr<Member> kept = member->second;
    return kept->take(from, envelope);
  }
  if (gone_.count(envelope.group) != 0) return dispatch_to_gone(from, envelope);
  early_[envelope.group].push_back({from, envelope});
}

void World::dispatch_to_gone(int from, const Envelope& envelope) {
  if (envelope.kind == Envelope::Kind::kRead) {
    Envelope refusal;
    refusal.kind = Envelope::Kind::kRefused;
    refusal.group = envelope.group;
    refusal.sequence = envelope.sequence;
    return send(refusal, from);
  }
  const bool has_data =
      envelope.kind == Envelope::Kind::kMessage || envelope.kind == Envelope::Kind::kAnswer;
  if (has_data) drain(from, envelope);
}

bool World::look() {
  if (is_making_) {
    int is_over = 0;
    int source = 0;
    if (calls_.test(&making_, &is_over, &source) != 0 || is_over == 0) return false;
    get_ready();
    return true;
  }
  if (!is_ready() || retired_) return false;
  bool moved = false;
  while (true) {
    Incoming& incoming = incoming_[next_];
    int is_over = 0;
    int source = 0;
    link_->check(calls_.test(&incoming.request, &is_over, &source), "MPI_Test");
    if (is_over == 0) break;
    const Envelope envelope = incoming.envelope;
    await_envelope(incoming);
    next_ = (next_ + 1) % kReceives;
    dispatch(source, envelope);
    moved = true;
  }
  return look_at_outgoing() || moved;
}

bool World::look_at_outgoing() {
  const size_t before = outgoing_.size() + kept_.size();
  int problem = 0;
  outgoing_.remove_if([&](Outgoing& outgoing) {
    int is_over = 0;
    int source = 0;
    const int code = calls_.test(&outgoing.request, &is_over, &source);
    if (code != 0) problem = code;
    return code != 0 || is_over != 0;
  });
  kept_.remove_if([](Kept& kept) {
    try {
      return kept.exchange->is_over();
    } catch (const std::exception&) {  // given up already, and its other side may be gone
      return true;
    }
  });
  if (failure().empty()) link_->check(problem, "MPI_Test");
  return outgoing_.size() + kept_.size() != before;
}

bool World::advance(Clock::time_point now) {
  try {
    look_at_host(now);
    if (now >= host_fails_at_) fail_host();
    bool moved = look();
    const auto members = members_;  // a member may go
    for (const auto& [key, member] : members) {
      moved = member->advance(now) || moved;
      if (member->is_over()) remove(*member);
    }
    flights_.advance(now);
    if (is_leaving_ && !ended_) end_unless_needed(now);
    if (ended_ && !retired_) retire(now);
    return moved;
  } catch (const std::exception& error) {
    fail_by(error);
    return false;
  }
}

bool World::is_busy() const {
  if (is_making_ || !outgoing_.empty() || !kept_.empty() || flights_.is_busy()) return true;
  if (host_fails_at_ != Clock::time_point::max()) return true;
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second->is_busy(); });
}

bool World::is_asked() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second->is_asked(); });
}

void World::retire(Clock::time_point now) {
  if (static_cast<int>(ended_ranks_.size()) < size() - 1) {
    patient_until_ = now + patience_.timeout;
    return;
  }
  if (!outgoing_.empty() ||
      !kept_.empty()) {  // the other side of a transfer may have been given up
    if (now > patient_until_) set_failure("what was under way when all ranks left has not ended");
    return;
  }
  if (!members_.empty()) {  // groups that outlive MPI: what is under way there has no end
    set_failure(kFinalised);
    for (const auto& [key, member] : std::exchange(members_, {})) member->end_all(failure());
  }
  if (!outgoing_.empty() || !kept_.empty()) return;
  // No rank sends any more, so these have not begun.
  for (Incoming& incoming : incoming_) {
    calls_.cancel(&incoming.request);
    int is_over = 0;
    int source = 0;
    while (calls_.test(&incoming.request, &is_over, &source) == 0 && is_over == 0) {
    }
  }
  link_->release();
  retired_ = true;
}

}  // namespace tessera::internal::mpi
