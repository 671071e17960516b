#include "tessera/core/comm/mpi/mailbox.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/groups/call_tag.h"
#include "tessera/core/comm/mpi/member.h"
#include "tessera/process_group.h"

namespace tessera::internal::mpi {

void Mailbox::start(const std::shared_ptr<Call>& call) {
  const std::string cause = member_.failure();
  if (!cause.empty()) return call->fail(cause);
  if (call->signature().op == Op::kSend) return send(call);
  receive(call);
}

void Mailbox::send(const std::shared_ptr<Call>& call) {
  const at::Tensor tensor = call->collective().input;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const int to = call->signature().peer;
  Envelope envelope = member_.envelope(Envelope::Kind::kMessage);
  envelope.signature = call->signature();
  envelope.set_tag(call->tag());
  if (to == member_.rank()) {
    const at::Tensor copy = at::empty_like(tensor);
    if (bytes > 0) std::memcpy(data_of(copy), data_of(tensor), static_cast<size_t>(bytes));
    call->finish();
    return take_own({to, envelope, copy});
  }
  if (member_.has_left(to)) {
    if (bytes <= ProcessGroup::kBufferedBytes) return call->finish();  // and it is lost
    fail_as_left(*call, to);
    return call->fail(member_.failure());
  }
  const bool is_inside = bytes <= static_cast<int64_t>(Envelope::kPayloadBytes);
  if (is_inside && bytes > 0) {
    std::memcpy(envelope.payload(), data_of(tensor), static_cast<size_t>(bytes));
  }
  if (!is_inside) envelope.data_tag = member_.world().link().draw_tag();
  member_.world().send(envelope, member_.world_rank(to));
  if (is_inside) return call->finish();

  auto moving = begin_move(call, to, envelope.data_tag);
  if (bytes > ProcessGroup::kBufferedBytes) {
    moving->exchange->send(to, data_of(tensor), bytes);
    moving_.push_back(std::move(moving));
    return;
  }
  const at::Tensor copy = at::empty_like(tensor);
  std::memcpy(data_of(copy), data_of(tensor), static_cast<size_t>(bytes));
  moving->collective.input = copy;
  moving->exchange->send(to, data_of(copy), bytes);
  member_.world().keep(*moving->exchange, moving);
  call->finish();
}

std::shared_ptr<Mailbox::Moving> Mailbox::begin_move(const std::shared_ptr<Call>& call, int peer,
                                                     int data_tag) {
  auto moving = std::make_shared<Moving>();
  moving->member = member_.shared_from_this();
  moving->call = call;
  moving->collective = call->collective();
  moving->peer = peer;
  moving->data_tag = data_tag;
  moving->exchange = std::make_unique<Exchange>(member_.world().link(), member_.world_ranks(),
                                                moving->sends() ? data_tag : Exchange::kNoTag);
  if (!moving->sends()) moving->exchange->set_tag_of(peer, data_tag);
  return moving;
}

void Mailbox::note_received(int rank, int data_tag) {
  for (const auto& moving : moving_) {
    const bool is_it = moving->sends() && moving->peer == rank && moving->data_tag == data_tag;
    if (is_it) moving->is_received = true;
  }
}

void Mailbox::finish(Moving& moving) {
  member_.world().count_sent(moving.exchange->sent_bytes());
  if (moving.sends()) return moving.call->finish();
  const auto bytes = static_cast<int64_t>(moving.collective.output.nbytes());
  if (bytes > ProcessGroup::kBufferedBytes) {
    Envelope envelope = member_.envelope(Envelope::Kind::kReceived);
    envelope.data_tag = moving.data_tag;
    member_.world().send(envelope, member_.world_rank(moving.peer));
  }
  moving.call->finish(moving.peer);
}

bool Mailbox::fits(const Call& receive, const Arrived& arrived) const {
  const int from = receive.signature().peer;
  return (from == kAnySource || from == arrived.from) &&
         receive.tag().size() == arrived.envelope.text_length &&
         arrived.envelope.text_hash == hash_of_tag(receive.tag());
}

void Mailbox::take(int rank, const Envelope& envelope) { take_own({rank, envelope, {}}); }

void Mailbox::take_own(Arrived arrived) {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const auto& call) { return fits(*call, arrived); });
  if (found == receives_.end()) {
    arrived_.push_back(std::move(arrived));
    return;
  }
  const std::shared_ptr<Call> call = *found;
  receives_.erase(found);
  deliver(call, arrived);
}

void Mailbox::receive(const std::shared_ptr<Call>& call) {
  const auto found = std::find_if(arrived_.begin(), arrived_.end(),
                                  [&](const Arrived& arrived) { return fits(*call, arrived); });
  if (found == arrived_.end()) {
    receives_.push_back(call);
    return;
  }
  const Arrived arrived = std::move(*found);
  arrived_.erase(found);
  deliver(call, arrived);
}

void Mailbox::deliver(const std::shared_ptr<Call>& receive, const Arrived& arrived) {
  const CallSignature& sent = arrived.envelope.signature;
  if (!internal::fits(sent, receive->signature())) {
    const std::string cause =
        message_mismatch(member_.name_of(member_.rank()), receive->signature(),
                         member_.name_of(arrived.from), sent, receive->tag());
    if (!arrived.copy.defined()) {
      member_.world().drain(member_.world_rank(arrived.from), arrived.envelope);
    }
    member_.fail(cause, -1);
    return receive->fail(cause);
  }
  const at::Tensor& output = receive->collective().output;
  const auto bytes = static_cast<int64_t>(output.nbytes());
  const bool is_own = arrived.copy.defined();
  if (is_own || bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    const char* const from = is_own ? data_of(arrived.copy) : arrived.envelope.payload();
    if (bytes > 0) std::memcpy(data_of(output), from, static_cast<size_t>(bytes));
    return receive->finish(arrived.from);
  }
  auto moving = begin_move(receive, arrived.from, arrived.envelope.data_tag);
  moving->exchange->receive(arrived.from, data_of(output), bytes);
  moving_.push_back(std::move(moving));
}

bool Mailbox::advance(Call::Clock::time_point now) {
  bool moved = false;
  for (auto place = moving_.begin(); place != moving_.end();) {
    Moving& moving = **place;
    const bool is_awaited = moving.sends() && !moving.is_received;
    if (moving.exchange->is_over() && !is_awaited) {
      finish(moving);
      place = moving_.erase(place);
      moved = true;
      continue;
    }
    if (is_awaited && member_.has_left(moving.peer)) {
      fail_as_left(*moving.call, moving.peer);
      return true;  // all lists are empty
    }
    if (moving.call->is_late(now)) {
      time_out(*moving.call);
      return true;
    }
    if (moving.call->is_to_be_reported(now)) member_.report_wait(moving.call, {moving.peer});
    ++place;
  }
  for (const auto& call : receives_) {
    const int from = call->signature().peer;
    if (is_gone(from)) {
      fail_as_left(*call, from);
      return true;
    }
    if (call->is_late(now)) {
      time_out(*call);
      return true;
    }
    if (call->is_to_be_reported(now)) member_.report_wait(call, awaited(from));
  }
  return moved;
}

/// Of kAnySource: all others.
std::vector<int> Mailbox::awaited(int from) const {
  if (from >= 0) return {from};
  std::vector<int> ranks(static_cast<size_t>(member_.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool Mailbox::is_gone(int from) const {
  if (from >= 0) return member_.has_left(from);
  int gone = 0;
  for (int rank = 0; rank < member_.size(); ++rank) gone += member_.has_left(rank) ? 1 : 0;
  return gone > 0 && gone == member_.size() - 1;
}

void Mailbox::end_all(const std::string& cause) {
  for (const auto& call : std::exchange(receives_, {})) call->fail(cause);
  for (const auto& moving : std::exchange(moving_, {})) {
    if (moving->is_received) {
      moving->call->finish();
    } else {
      moving->call->fail(cause);
    }
    moving->exchange->cancel();
    member_.world().keep(*moving->exchange, moving);
  }
  for (const Arrived& arrived : std::exchange(arrived_, {})) {
    if (!arrived.copy.defined()) {
      member_.world().drain(member_.world_rank(arrived.from), arrived.envelope);
    }
  }
}

void Mailbox::fail_as_left(const Call& call, int peer) {
  const std::string who = peer >= 0 ? member_.name_of(peer) : "every other rank";
  const std::string cause =
      call.signature().op == Op::kRecv
          ? absl::StrCat(who, " left the group without sending '", call.tag(),
                         "', or before it was received, and it is lost")
          : absl::StrCat(who, " left the group without receiving '", call.tag(), "'");
  member_.fail(cause, peer);
}

void Mailbox::time_out(const Call& call) {
  const CallSignature& signature = call.signature();
  const bool receives = signature.op == Op::kRecv;
  const int peer = signature.peer;
  std::string cause = absl::StrCat(
      "timed out: waited ", call.timeout().count(), " ms for ",
      peer < 0 ? std::string("any rank") : member_.name_of(peer) + member_.place_of(peer), " to ",
      receives ? "send" : "receive", " '", call.tag(), "', in ", describe(signature, call.tag()),
      " of ", member_.name_of(member_.rank()));
  constexpr int kShown = 4;
  int shown = 0;
  for (const Arrived& arrived : arrived_) {
    if (!receives || shown == kShown) break;
    absl::StrAppend(&cause, shown++ == 0 ? "; what has come: " : ", ",
                    describe(arrived.envelope.signature, arrived.envelope.tag()), " of ",
                    member_.name_of(arrived.from));
  }
  member_.fail(cause, peer);
}

}  // namespace tessera::internal::mpi
