// The messages of a link: Note [Messages].
#include "tessera/core/comm/shm/messages.h"

#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {
namespace {

/// A message that this rank has sent, until its receiver has taken it. One that goes with it is
/// withdrawn, but a copy stays for a receiver that may look there later.
class Sent final : public Transfer {
 public:
  Sent(Link& link, const Call& call) : link_(link) {
    const at::Tensor& tensor = call.collective().input;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    to_ = call.record().signature.peer;
    std::optional<SharedRange> source;
    if (bytes > ProcessGroup::kBufferedBytes) source = link.find(tensor.const_data_ptr(), bytes);
    if (source.has_value()) {
      in_place_ = tensor;
    } else if (bytes > 0) {
      copy_ = link.world().arena()->allocate(bytes);
      copy_bytes(copy_, data_of(tensor), bytes);
      source = link.find(copy_, bytes);
    }
    message_ = &link.post_message(to_, call.record(), source.value_or(SharedRange()));
  }

  ~Sent() override {
    if (message_ == nullptr || !in_place_.defined() || !link_.origin().is_here()) return;
    uint32_t posted = Message::kPosted;
    const bool is_withdrawn = message_->state.compare_exchange_strong(posted, Message::kWithdrawn);
    // The receiver is reading it right now, and this must not wait for that.
    if (!is_withdrawn) link_.world().progress().keep(std::move(in_place_));
  }

  State advance() override {
    if (message_ == nullptr) return State::kOver;
    if (message_->state.load(std::memory_order_acquire) != Message::kTaken) return State::kMoving;
    if (copy_ != nullptr) link_.world().arena()->free(copy_);
    link_.note_taken(*std::exchange(message_, nullptr));
    return State::kOver;
  }
  std::vector<int> awaited() override { return {to_}; }

 private:
  Link& link_;
  int to_ = 0;
  Message* message_ = nullptr;
  char* copy_ = nullptr;  // in the arena
  at::Tensor in_place_;
};

/// A message that has been received.
class Received final : public Transfer {
 public:
  State advance() override { return State::kOver; }
  std::vector<int> awaited() override { return {}; }
};

}  // namespace

std::unique_ptr<Transfer> Link::send(const Call& call) {
  drop_taken();
  auto sent = std::make_unique<Sent>(*this, call);
  if (static_cast<int64_t>(call.collective().input.nbytes()) > ProcessGroup::kBufferedBytes) {
    return sent;
  }
  sent_.push_back(std::move(sent));
  return nullptr;
}

/// Frees what receivers have taken, and gone on from.
void Link::drop_taken() {
  sent_.remove_if(
      [](const auto& transfer) { return transfer->advance() == Transfer::State::kOver; });
  std::erase_if(taken_, [this](Message* message) {
    const bool is_passed = message->is_passed.load(std::memory_order_acquire) == 1;
    if (is_passed) world_->arena()->free(reinterpret_cast<char*>(message));
    return is_passed;
  });
}

/// Where the lists for all receivers begin.
void Link::open_lists() {
  const int64_t bytes = static_cast<int64_t>(sizeof(MessageLink)) * size();
  auto* const lists = reinterpret_cast<MessageLink*>(world_->arena()->allocate(bytes));
  for (int receiver = 0; receiver < size(); ++receiver) {
    last_sent_.push_back(new (&lists[receiver]) MessageLink());
  }
  ChannelSlot& slot = channel_.slot(rank_);
  slot.lists = *find(lists, bytes);
  slot.has_lists.store(1, std::memory_order_release);
}

Message& Link::post_message(int receiver, const CallRecord& call, const SharedRange& source) {
  if (last_sent_.empty()) open_lists();
  auto* const message = new (world_->arena()->allocate(sizeof(Message))) Message();
  message->call = call;
  message->source = source;
  MessageLink*& last = last_sent_[static_cast<size_t>(receiver)];
  last->next = *find(message, sizeof(Message));
  last->has_next.store(1, std::memory_order_seq_cst);
  last = message;
  world_->bell_of(world_rank(receiver)).ring();
  return *message;
}

std::unique_ptr<Transfer> Link::receive(const Arrival& arrival, const Call& call) {
  auto& message = *static_cast<Message*>(arrival.place);
  uint32_t posted = Message::kPosted;
  if (!message.state.compare_exchange_strong(posted, Message::kTaking)) {
    throw Fault{absl::StrCat(name_of(arrival.from), " left the group before its message '",
                             call.tag(), "' was received"),
                arrival.from};
  }
  const at::Tensor& output = call.collective().output;
  const auto bytes = static_cast<int64_t>(output.nbytes());
  if (bytes > 0) copy_bytes(data_of(output), resolve(message.source), bytes);
  message.state.store(Message::kTaken, std::memory_order_seq_cst);
  world_->bell_of(world_rank(arrival.from)).ring();
  wake();  // another thread of this rank may wait for it
  return std::make_unique<Received>();
}

std::optional<Arrival> Link::next_arrival() {
  for (int i = 0; i < size(); ++i) {
    const int sender = next_sender_;
    if (std::optional<Arrival> arrival = next_arrival_from(sender)) return arrival;
    next_sender_ = (next_sender_ + 1) % size();
  }
  return std::nullopt;
}

MessageLink* Link::list_of(int sender) {
  ChannelSlot& slot = channel_.slot(sender);
  if (slot.has_lists.load(std::memory_order_acquire) == 0) return nullptr;
  return &reinterpret_cast<MessageLink*>(resolve(slot.lists))[rank_];
}

std::optional<Arrival> Link::next_arrival_from(int sender) {
  if (sender == rank_) return std::nullopt;
  MessageLink*& last = last_read_[static_cast<size_t>(sender)];
  try {
    if (last == nullptr) last = list_of(sender);
    if (last == nullptr || last->has_next.load(std::memory_order_acquire) == 0) return std::nullopt;
    auto& message = *reinterpret_cast<Message*>(resolve(last->next));
    std::exchange(last, &message)->is_passed.store(1, std::memory_order_release);
    return Arrival{sender, message.call, &message};
  } catch (const c10::Error&) {
    // Its memory went with it, and so did its messages.
    if (!has_left(sender)) throw;
    return std::nullopt;
  }
}

}  // namespace tessera::internal::shm
