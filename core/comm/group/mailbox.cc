#include "tessera/core/comm/group/mailbox.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

int peer_of(const Call& call) { return call.record().signature.peer; }
bool sends(const Call& call) { return call.record().signature.op == Op::kSend; }

bool fits(const Call& receive, const Arrival& arrival) {
  const int from = peer_of(receive);
  return (from == kAnySource || from == arrival.from) && receive.record().tag == arrival.record.tag;
}

}  // namespace

void Mailbox::start(const std::shared_ptr<Call>& call) {
  sends(*call) ? send(call) : receive(call);
}

void Mailbox::send(const std::shared_ptr<Call>& call) {
  const at::Tensor& tensor = call->collective().input;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (peer_of(*call) == link_.rank()) {
    Arrival own{link_.rank(), call->record(), nullptr, at::empty_like(tensor)};
    copy_bytes(data_of(own.copy), data_of(tensor), bytes);
    call->finish();
    return take(std::move(own));
  }
  call->transfer() = link_.send(*call);
  if (call->transfer() == nullptr) return call->finish();
  open_.push_back(call);  // listed before advance(): if that fails, this call must end, too
  if (advance(*call)) open_.pop_back();
}

void Mailbox::receive(const std::shared_ptr<Call>& call) {
  open_.push_back(call);
  const auto there = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Arrival& one) { return fits(*call, one); });
  if (there == waiting_.end()) return take_arrivals();
  const Arrival arrival = std::move(*there);
  waiting_.erase(there);
  if (deliver(*call, arrival)) open_.pop_back();
}

void Mailbox::take(Arrival arrival) {
  const auto receive = std::find_if(open_.begin(), open_.end(), [&](const auto& call) {
    return !sends(*call) && call->transfer() == nullptr && fits(*call, arrival);
  });
  if (receive == open_.end()) {
    waiting_.push_back(std::move(arrival));
  } else if (deliver(**receive, arrival)) {
    open_.erase(receive);
  }
}

/// Delivers `arrival` to `receive`, which is in open_. Returns true if the receive is over.
bool Mailbox::deliver(Call& receive, const Arrival& arrival) {
  const CallSignature& sent = arrival.record.signature;
  const CallSignature& expected = receive.record().signature;
  if (!internal::fits(sent, expected)) {
    if (!arrival.copy.defined()) link_.drop(arrival);
    throw Fault{message_mismatch(link_.own_name(), expected, link_.name_of(arrival.from), sent,
                                 receive.tag())};
  }
  receive.set_source(arrival.from);
  if (arrival.copy.defined()) {
    const at::Tensor& output = receive.collective().output;
    copy_bytes(data_of(output), data_of(arrival.copy), static_cast<int64_t>(output.nbytes()));
  } else {
    receive.transfer() = link_.receive(arrival, receive);
  }
  return advance(receive);
}

/// Moves the call's data. Returns true if nothing is left to move, so that the call is over.
bool Mailbox::advance(Call& call) {
  if (call.transfer() != nullptr && call.transfer()->advance() != Transfer::State::kOver) {
    return false;
  }
  call.transfer() = nullptr;
  call.finish();
  return true;
}

void Mailbox::take_arrivals() {
  while (std::optional<Arrival> arrival = link_.next_arrival()) take(std::move(*arrival));
}

void Mailbox::advance() {
  take_arrivals();
  open_.remove_if(
      [this](const auto& call) { return call->transfer() != nullptr && advance(*call); });
}

bool Mailbox::keeps_sender_waiting() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& call) {
    if (sends(*call) || call->transfer() != nullptr) return false;
    return static_cast<int64_t>(call->collective().output.nbytes()) > ProcessGroup::kBufferedBytes;
  });
}

/// Returns the ranks that the call waits for. For kAnySource: all other ranks.
std::vector<int> Mailbox::awaited(const Call& call) const {
  if (peer_of(call) >= 0) return {peer_of(call)};
  std::vector<int> ranks;
  for (int rank = 0; rank < link_.size(); ++rank) {
    if (rank != link_.rank()) ranks.push_back(rank);
  }
  return ranks;
}

/// Returns true if all ranks that could send or receive the call's message have left.
bool Mailbox::is_lost(Call& call) const {
  if (call.is_over() || (!sends(call) && call.transfer() != nullptr)) return false;
  const std::vector<int> ranks = awaited(call);
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return link_.has_left(rank); });
}

void Mailbox::look_for_late(Call::Clock::time_point now, const Patience& patience) {
  const std::vector<std::shared_ptr<Call>> calls(open_.begin(), open_.end());
  for (const auto& call : calls) {
    if (is_lost(*call)) {
      advance();  // the message may have been sent before the rank left
      if (is_lost(*call)) fail_as_left(*call);
    }
    if (call->is_over()) continue;
    if (call->is_to_be_reported(now, patience.report_after)) {
      link_.report_wait(*call, awaited(*call), now, patience.timeout);
    }
    if (call->waited(now) >= patience.timeout) time_out(*call, patience.timeout);
  }
}

void Mailbox::end_all(const std::string& cause) {
  for (const auto& call : std::exchange(open_, {})) link_.give_up(*call, cause);
  for (const Arrival& arrival : std::exchange(waiting_, {})) {
    if (!arrival.copy.defined()) link_.drop(arrival);
  }
}

void Mailbox::fail_as_left(const Call& call) const {
  const int peer = peer_of(call);
  const std::string who = peer >= 0 ? link_.name_of(peer) : "every other rank";
  const char* const what = sends(call) ? "receiving" : "sending";
  throw Fault{absl::StrCat(who, " left the group without ", what, " '", call.tag(), "'"), peer};
}

void Mailbox::time_out(const Call& call, std::chrono::milliseconds timeout) const {
  const int peer = peer_of(call);
  std::string cause =
      absl::StrCat("timed out: waited ", timeout.count(), " ms for ",
                   peer < 0 ? std::string("any rank") : link_.name_of(peer) + link_.place_of(peer),
                   " to ", sends(call) ? "receive" : "send", " '", call.tag(), "', in ",
                   call.record().text(), " of ", link_.own_name());
  int culprit = peer;
  for (const int rank : awaited(call)) {
    const std::string activity = link_.activity_of(rank);
    if (peer >= 0 && !activity.empty()) absl::StrAppend(&cause, "; it ", activity);
    if (peer >= 0 || !absl::StartsWith(activity, "is stopped")) continue;
    absl::StrAppend(&cause, "; ", link_.name_of(rank), link_.place_of(rank), " ", activity);
    culprit = rank;
  }
  constexpr int kShown = 4;
  int shown = 0;
  for (const Arrival& one : waiting_) {
    if (sends(call) || shown == kShown) break;
    absl::StrAppend(&cause, shown++ == 0 ? "; what has come: " : ", ", one.record.text(), " of ",
                    link_.name_of(one.from));
  }
  throw Fault{cause, culprit};
}

}  // namespace tessera::internal
