// Messages between two ranks of a group. A message is an envelope, which holds the data if it fits.
// Otherwise the envelope holds a tag, and the data follows in a second MPI message with that tag.
// MPI keeps the order of the envelopes between two ranks.
#include <optional>
#include <utility>

#include <ATen/ops/empty_like.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/process_group.h"

namespace tessera::internal::mpi {

namespace {

/// The sending or receiving of one message. A large send is over only when the receiver has
/// acknowledged the data. It is not enough that MPI has completed the send: MPI completes it even
/// if the receiver has failed and only drains the data.
class MessageTransfer final : public Transfer {
 public:
  /// `data_tag`: the tag that the sender has drawn for the data.
  MessageTransfer(Link& link, int peer, int data_tag, bool sends, bool is_large)
      : link_(link), peer_(peer), data_tag_(data_tag), sends_(sends), is_large_(is_large) {}

  /// Starts to move the data that follows the envelope. Not called if the data came inside the
  /// envelope or never comes.
  void move(const at::Tensor& tensor) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    data_.emplace(link_.world().communicator(), link_.number_of(peer_), data_tag_, tensor);
    if (sends_) {
      data_->exchange.send(0, data_of(tensor), bytes);
    } else {
      data_->exchange.receive(0, data_of(tensor), bytes);
    }
  }

  State advance() override {
    if (data_.has_value() && !data_->exchange.is_over()) return State::kMoving;
    if (!is_large_) return State::kOver;
    if (sends_) {
      return link_.take_receipt(peer_, data_tag_) ? State::kOver : State::kMoving;
    }
    if (!std::exchange(has_told_, true)) {
      Envelope receipt = link_.ranks()->envelope(Envelope::Kind::kReceived);
      receipt.data_tag = data_tag_;
      link_.ranks()->send(receipt, peer_);
    }
    return link_.world().has_sent() ? State::kOver : State::kMoving;
  }
  std::vector<int> awaited() override { return {peer_}; }
  Exchange* exchange() override { return data_.has_value() ? &data_->exchange : nullptr; }

 private:
  Link& link_;
  const int peer_;
  const int data_tag_;
  const bool sends_;
  const bool is_large_;
  bool has_told_ = false;
  std::optional<PairExchange> data_;
};

}  // namespace

std::unique_ptr<internal::Transfer> Link::send(const Call& call) {
  const at::Tensor& tensor = call.collective().input;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const int to = call.record().signature.peer;
  const bool is_large = bytes > ProcessGroup::kBufferedBytes;
  Envelope envelope = ranks_->envelope(Envelope::Kind::kMessage);
  envelope.record = call.record();
  envelope.data_bytes = bytes;
  envelope.data_tag = world().communicator().draw_tag();
  const bool is_inside = Envelope::holds(bytes);
  if (is_inside) copy_bytes(envelope.payload(), data_of(tensor), bytes);
  const bool has_left = this->has_left(to);
  if (!has_left) ranks_->send(envelope, to);
  if (is_large) {  // if the receiver has left, it never acknowledges this send
    auto sent = std::make_unique<MessageTransfer>(*this, to, envelope.data_tag, /*sends=*/true,
                                                  /*is_large=*/true);
    if (!has_left) sent->move(tensor);
    return sent;
  }
  if (is_inside || has_left) return nullptr;
  const at::Tensor copy = at::empty_like(tensor);
  copy_bytes(data_of(copy), data_of(tensor), bytes);
  auto sent = std::make_shared<PairExchange>(world().communicator(), number_of(to),
                                             envelope.data_tag, copy);
  sent->exchange.send(0, data_of(copy), bytes);
  world().keep({sent, &sent->exchange});
  return nullptr;
}

void Link::take_message(int from, const Envelope& envelope) {
  if (is_gone_ || has_failed()) return world().drain(number_of(from), envelope);
  auto arrived = std::make_unique<Received>(Received{from, envelope});
  new_.push_back(arrived.get());
  arrived_[arrived.get()] = std::move(arrived);
}

std::optional<Arrival> Link::next_arrival() {
  if (new_.empty()) return std::nullopt;
  Received* const arrived = new_.front();
  new_.pop_front();
  return Arrival{arrived->from, arrived->envelope.record, arrived};
}

std::unique_ptr<internal::Transfer> Link::receive(const Arrival& arrival, const Call& call) {
  const auto node = arrived_.extract(arrival.place);
  const Envelope& envelope = node.mapped()->envelope;
  const at::Tensor& output = call.collective().output;
  auto come = std::make_unique<MessageTransfer>(
      *this, arrival.from, envelope.data_tag, /*sends=*/false,
      /*is_large=*/envelope.data_bytes > ProcessGroup::kBufferedBytes);
  if (Envelope::holds(envelope.data_bytes)) {
    copy_bytes(data_of(output), envelope.payload(), envelope.data_bytes);
  } else {
    come->move(output);
  }
  return come;
}

void Link::drop(const Arrival& arrival) {
  const auto node = arrived_.extract(arrival.place);
  world().drain(number_of(arrival.from), node.mapped()->envelope);
}

}  // namespace tessera::internal::mpi
